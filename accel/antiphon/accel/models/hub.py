"""Check whether a model can be loaded from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from antiphon.accel.hub_download import cached_file


def find_on_hub(name: str, wanted: str, bundled: Sequence[str]) -> str:
    """Return the name if the hub or its local cache has the model; sends at most one HTTP request.

    Raises:
        ValueError: There is no such model, access to it is denied, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if cached_file(name, "config.json") is not None:
        return name
    if "/" not in name and (meant := get_close_matches(name.lower(), bundled, n=1)):
        raise ValueError(f"There is no model {name!r}; did you mean {meant[0]!r}?")
    try:
        HfApi().auth_check(name)
    except GatedRepoError:
        raise ValueError(f"The model {name!r} is gated: accept its terms on the hub, then run: hf auth login") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ValueError(f"The hub has no model {name!r} that you may read; {wanted}.") from None
    except Exception as error:  # the HTTP library's errors differ by version
        raise ValueError(
            f"The model {name!r} is not on this machine and the hub cannot be reached ({error}); {wanted}."
        ) from error
    return name
