"""`python -m antiphon.pipelines.cli`, the same as `antiphon`."""

from antiphon.pipelines.cli.main import app

if __name__ == "__main__":
    app(prog_name="antiphon")
