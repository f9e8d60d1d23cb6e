"""`python -m antiphon.pipelines.cli`, the same as `antiphon`."""

from antiphon.pipelines.cli.main import run

if __name__ == "__main__":
    run()
