"""Show the known-wrong kernels of tests/bugs/ to compute-sanitizer, and write what it says as a record.

    python tools/sanitize_bugs.py        # on an NVIDIA GPU; writes helpers/data/results/…-sanitizer.json

Every wrong kernel runs in a process of its own under the tool made for its kind of bug, with a time limit, since some hang a GPU.
All corrected twins run under every tool.  tests/test_cpu_device_bugs.py holds the CPU device's findings against the record.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))
import test_cpu_device_bugs as bugs  # noqa: E402

TOOL = {"out_of_bounds": "memcheck", "misaligned": "memcheck", "uninitialized": "initcheck", "race": "racecheck",
        "barrier": "synccheck", "collective": "synccheck"}  # no tool looks for races between blocks or unwritten outputs
SECONDS = 20
FOUND = re.compile(r"= (?:Invalid __\w+__|Uninitialized __global__|(?:Error|Warning): Race|Barrier error)[^\n]*")
PLACE = re.compile(r"\b\w+\.cu:(\d+)")


def shown() -> list:
    """The bugs that one of the tools could see; without the second launch of the same kernel."""
    return list({bug.name: bug for bug in bugs.FOUND if bug.kind in TOOL}.values())


def launch(bug, fixed: bool, cupy) -> None:
    """Launch a wrong kernel, or its twin, on the GPU; what becomes of the context does not matter."""
    bugs.cp = cupy  # the arguments are made by CuPy instead of the CPU device
    cupy.cuda.set_allocator(None)  # no pool: each array is an allocation of its own, with its own end
    module = cupy.RawModule(code=f'#line 1 "{bug.file}"\n{(bugs.BUGS / bug.file).read_text()}', options=("-lineinfo",))
    args, how = (bug.fixed_args or bug.args)() if fixed else bug.args(), bug.fixed_launch if fixed else {}
    name = (bug.fixed or f"{bug.name}_fixed") if fixed else bug.name
    module.get_function(name)(bug.grid, bug.block, args, shared_mem=how.get("shared_mem", bug.shared))
    cupy.cuda.Device().synchronize()


def sanitize(tool: str, names: list[str]) -> str:
    """What the tool prints while a process launches these; '' and a note where it did not end in time."""
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "10", sys.executable, __file__, "--launch", *names]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
        return process.communicate()[0] + "\nTIMEOUT"


def examine(bug) -> dict:
    """One row: the tool, what it reported, and the lines it named (up to the first report's end)."""
    text = sanitize(TOOL[bug.kind], [bug.name])
    report = FOUND.search(text)
    after = text[report.start():] if report else ""
    first = after[:after.find("=========\n")] if "=========\n" in after else after
    row = {"topic": "sanitizer", "name": bug.name, "kind": bug.kind, "tool": TOOL[bug.kind],
           "says": report.group()[2:].strip() if report else ("ran into the time limit" if "TIMEOUT" in text else ""),
           "lines": sorted({int(n) for n in PLACE.findall(first)})}
    print(row, flush=True)
    if not report:
        print(text[-1500:], flush=True)
    return row


def twins_are_clean(tool: str) -> None:
    """All corrected twins in one process; raises if the tool finds anything."""
    text = sanitize(tool, [f"{bug.name}:fixed" for bug in shown()])
    print(tool, "twins:", re.findall(r"(?:ERROR|RACECHECK) SUMMARY[^\n]*", text), flush=True)
    if not re.search(r"SUMMARY: 0 (?:errors|hazards)", text):
        raise SystemExit(f"{tool} on the corrected twins:\n{text[-3000:]}")


def main() -> None:
    from helpers.bench import write

    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(examine, shown()))
        list(pool.map(twins_are_clean, sorted(set(TOOL.values()))))
    print(write("sanitizer", rows))


if __name__ == "__main__":
    if "--launch" in sys.argv:
        import cupy

        by_name = {bug.name: bug for bug in shown()}
        for name in sys.argv[2:]:
            launch(by_name[name.removesuffix(":fixed")], name.endswith(":fixed"), cupy)
    else:
        main()
