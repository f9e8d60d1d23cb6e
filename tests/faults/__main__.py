"""Record which tests detect each fault: `python -m tests.faults`, or `make faults`.

Faults that are already in the table are skipped, so an interrupted run can be continued.
"""

import argparse
import sys
from time import perf_counter

from tests.faults import table
from tests.faults.catalogue import faults
from tests.faults.runner import failing_tests


def main() -> int:
    """Run the tests of each fault and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", metavar="NAME", nargs="+", help="faults to record, also again")
    parser.add_argument("--again", action="store_true", help="record all faults again")
    parser.add_argument("--first", action="store_true", help="run the likeliest file of each fault only")
    parser.add_argument("--weak", action="store_true", help="record those again that fewer than two tests detect")
    options = parser.parse_args()
    recorded = table.read()
    if unknown := set(options.only or ()) - faults().keys():
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    for name in options.only or faults():
        is_known = name in recorded and not (options.weak and len(recorded[name]) < 2)
        if is_known and not options.only and not options.again:
            continue
        started = perf_counter()
        try:
            found = failing_tests(name, faults()[name].tests[: 1 if options.first else None])
        except RuntimeError as error:
            sys.stderr.write(f"{name}: {error}\n")
            continue
        recorded = {fault: tests for fault, tests in table.read().items() if fault in faults()} | {name: found}
        table.write(recorded)
        sys.stderr.write(f"{name}: {len(found)} in {perf_counter() - started:.0f} s\n")
    sys.stdout.write(f"{table.summary(recorded)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
