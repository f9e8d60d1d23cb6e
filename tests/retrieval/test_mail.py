"""Messages: which of their parts is the text, and how it is decoded."""

from email.message import EmailMessage

import pytest

from antiphon.retrieval.formats.mail import read_mail_document

HTML = "<p>The heating did not work – the staff could give us only four blankets, and the lift was broken.</p>"


def mail(plain: str, html: str) -> bytes:
    message = EmailMessage()
    message["Subject"], message["From"] = "Crossing", "a@example.org"
    message.set_content(plain)
    message.add_alternative(html, subtype="html")
    return bytes(message)


@pytest.mark.parametrize("remark", ["Please view this message as HTML.", "\n"])
def test_html_is_read_if_the_plain_text_is_only_a_remark(remark: str) -> None:
    text = read_mail_document(mail(remark, HTML), "a.eml").text
    assert "heating did not work – the staff" in text, "in the charset of the part's header"
    assert "view this message" not in text


def test_plain_text_is_read_if_it_says_as_much_as_the_html() -> None:
    text = read_mail_document(
        mail("The heating did not work, and the lift was out of order all day.", HTML), "a.eml"
    ).text
    assert "out of order" in text
    assert "blankets" not in text
