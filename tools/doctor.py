"""Is this machine ready for the course?  Prints one line a topic, `[ok]` or `[fix]`; needs Python 3.8 and nothing else.

Exit status 0 unless something blocks the course.  A `[fix]` about the GPU never blocks: the kernels also run on the CPU device.

    python3 tools/doctor.py             every line
    python3 tools/doctor.py --quiet     only what is to be fixed
    python3 tools/doctor.py --before    only what an installation needs (no packages, no CuPy)
    python3 tools/doctor.py --extra     print cuda12 or cuda13, the extra that fits the NVIDIA driver, or nothing
"""

import argparse
import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = (3, 11), (3, 14)  # torch and numpy, at the pinned versions, have wheels for these
INSTALLERS = {  # command that is there -> what to type for (compiler, make, venv)
    "apt-get": ("sudo apt-get install g++", "sudo apt-get install make", "sudo apt-get install python3-venv"),
    "dnf": ("sudo dnf install gcc-c++", "sudo dnf install make", "sudo dnf install python3"),
    "pacman": ("sudo pacman -S gcc", "sudo pacman -S make", "sudo pacman -S python"),
    "zypper": ("sudo zypper install gcc-c++", "sudo zypper install make", "sudo zypper install python3"),
    "apk": ("sudo apk add g++", "sudo apk add make", "sudo apk add python3"),
}


class Line:
    """One line of the report: `ok`, the topic, one sentence, and whether the course cannot run before it is fixed."""

    def __init__(self, ok, topic, text, blocks=False):
        self.ok, self.topic, self.text, self.blocks = ok, topic, text, blocks and not ok

    def __str__(self):
        return "{:5} {:<14} {}".format("[ok]" if self.ok else "[fix]", self.topic, self.text)


def run(*command):
    """Output of a command, or None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, universal_newlines=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def what_to_type(tool, system):
    """The command that installs tool 0 (C++ compiler), 1 (make) or 2 (venv) on this system."""
    if system == "Darwin":
        return ("xcode-select --install", "xcode-select --install", "brew install python@3.12")[tool]
    for manager, commands in INSTALLERS.items():
        if shutil.which(manager):
            return commands[tool]
    return ("conda install cxx-compiler", "conda install make", "conda install python=3.12")[tool]


# --- the machine ------------------------------------------------------------------------------------------------------


def check_system(system, machine):
    if system == "Windows":
        return Line(False, "system", "Windows: type `wsl --install` and run the course inside that Linux", blocks=True)
    if (system, machine) == ("Darwin", "x86_64"):
        return Line(False, "system", "the pinned torch has no Intel Mac build: use Linux, say in a container", blocks=True)
    return Line(True, "system", "{} {}".format(system, machine))


def check_python(version, can_make_venv, system):
    """`version` of the Python that runs the course or creates its environment."""
    number, wanted = ".".join(map(str, version[:3])), "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
    if not OLDEST <= tuple(version[:2]) <= NEWEST:
        return Line(False, "Python", "{} does not fit: install Python {} and type `make run BASE=python3.12` (the name of "
                    "yours), or `conda env create -f environment.yml`".format(number, wanted), blocks=True)
    if not can_make_venv:
        return Line(False, "Python", "{} lacks the venv module: type `{}`".format(number, what_to_type(2, system)), blocks=True)
    return Line(True, "Python", number)


def can_make_venv():
    """False for a bare Debian Python, whose `-m venv` fails; an environment that exists needs no other."""
    if in_environment():
        return True
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return False
    return True


def find_compiler():
    """(command, first line of --version) of the first C++ compiler that compiles what the CPU device needs, or None.

    The same order as the CPU device: $CXX, g++, clang++, c++.
    """
    for command in filter(None, [os.environ.get("CXX"), "g++", "clang++", "c++"]):
        version = run(command, "--version")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "try.cpp")
            source.write_text("#include <vector>\nint main() { return std::vector<int>(1)[0]; }\n")
            flags = ("-std=c++17", "-fsanitize=thread", "-c", str(source), "-o", str(source.with_suffix(".o")))
            if version and run(command, *flags) is not None:
                return command, version.splitlines()[0]
    return None


def check_compiler(found, system):
    """The CPU device compiles every kernel, on a GPU machine too (counters, sanitizer)."""
    if found:
        return Line(True, "C++ compiler", "{} ({})".format(*found))
    return Line(False, "C++ compiler", "none works: type `{}`".format(what_to_type(0, system)), blocks=True)


def check_make(version, system):
    if version:
        return Line(True, "make", version.splitlines()[0])
    return Line(False, "make", "missing: type `{}`".format(what_to_type(1, system)), blocks=True)


def check_disk(free, need):
    """`free` and `need` in GB."""
    text = "{:.0f} GB free, {} needed".format(free, need)
    return Line(free >= need, "disk space", text + ("" if free >= need else ": make room and try again"), blocks=True)


# --- the GPU ----------------------------------------------------------------------------------------------------------


def driver_cuda():
    """CUDA version that the NVIDIA driver supports, as (major, minor); None without a driver.  Asks in three ways."""
    try:
        number = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value:
            return number.value // 1000, number.value % 1000 // 10
    except (OSError, AttributeError):
        pass
    return cuda_of_smi(run("nvidia-smi") or "") or cuda_of_proc(read("/proc/driver/nvidia/version"))


def cuda_of_smi(text):
    found = re.search(r"CUDA[\w ]* Version\s*:\s*(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def cuda_of_proc(text):
    """From the driver's own number: 580 came with CUDA 13, 525 with CUDA 12."""
    found = re.search(r"Kernel Module.*?\s(\d{3})\.\d+", text)
    if not found:
        return None
    return (13, 0) if int(found[1]) >= 580 else (12, 0) if int(found[1]) >= 525 else (11, 0)


def read(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def extra_for(cuda):
    """Name of the extra in pyproject.toml that brings CuPy for this driver, or ''."""
    return "" if cuda is None or cuda[0] < 12 else "cuda12" if cuda[0] == 12 else "cuda13"


def check_driver(cuda):
    if cuda is None:
        return Line(True, "NVIDIA driver", "none: the kernels run on the CPU device")
    text = "supports CUDA {}.{}".format(*cuda)
    if cuda[0] < 12:
        return Line(False, "NVIDIA driver", text + ": install driver 525 or newer (till then the CPU device runs the kernels)")
    return Line(True, "NVIDIA driver", text)


def check_cupy(installed, cuda, python):
    """`installed`: package name -> version; `cuda`: of the driver; `python`: of the environment, '' if none exists yet."""
    found = sorted(name for name in installed if re.fullmatch(r"cupy(-cuda1\dx)?", name))
    extra = extra_for(cuda)
    install = "{} -m pip install -c constraints.txt -e '.[{}]'".format(python, extra)
    if not extra:
        return Line(True, "CuPy", "not needed (no GPU to use)")
    if not python:
        return Line(True, "CuPy", "none yet: `make run` installs it, for CUDA {}".format(cuda[0]))
    if not found:
        return Line(False, "CuPy", "missing: type `{}` (till then the CPU device runs the kernels)".format(install))
    if len(found) > 1:
        return Line(False, "CuPy", "{} get in each other's way: type `{} -m pip uninstall -y {}`, then `{}`".format(
            " and ".join(found), python, " ".join(found), install))
    built_for = re.search(r"cuda(\d+)x", found[0])
    if built_for and int(built_for[1]) > cuda[0]:
        return Line(False, "CuPy", "{} is too new for a CUDA {} driver: type `{} -m pip uninstall -y {}`, then `{}`".format(
            found[0], cuda[0], python, found[0], install))
    return Line(True, "CuPy", "{} {}".format(found[0], installed[found[0]]))


# --- the packages -----------------------------------------------------------------------------------------------------


def in_environment():
    """Does this Python run in a virtual environment, or in a conda environment other than base?"""
    return sys.prefix != sys.base_prefix or os.environ.get("CONDA_DEFAULT_ENV", "base") != "base"


def installed_packages(venv):
    """(name -> version, python command): of this environment, or else of the folder `venv`; ({}, '') before there is one."""
    if in_environment() or not venv:
        where, python = None, os.path.relpath(sys.executable) if sys.executable.startswith(str(ROOT)) else sys.executable
    elif Path(venv).is_dir():
        where, python = [str(path) for path in Path(venv).glob("lib/python3*/site-packages")], venv + "/bin/python"
    else:
        return {}, ""
    found = importlib.metadata.distributions(**({"path": where} if where is not None else {}))
    return {normal(dist.metadata["Name"]): dist.version for dist in found if dist.metadata["Name"]}, python


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    """constraints.txt as name -> version."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", read(ROOT / "constraints.txt"), re.M))


def required(system):
    """Names that pyproject.toml asks for on this system: the course itself, the core ones and those of `make test`."""
    text = read(ROOT / "pyproject.toml")
    names = [("online-softmax-course", "")]
    for block in re.findall(r"^(?:dependencies|test) = \[\n(.*?)^\]", text, re.M | re.S):
        names += re.findall(r'^ *"([\w.-]+)((?:;[^"]*)?)"', block, re.M)
    return [normal(name) for name, marker in names if "linux" not in marker or system == "Linux"]


def check_packages(installed, wanted, pinned, python):
    """`python`: the command of the environment; '' if none exists yet."""
    if not python:
        return Line(True, "packages", "none yet: `make run` installs them into .venv")
    install = "type `{} -m pip install -c constraints.txt -e '.[test]'`".format(python)
    missing = [name for name in wanted if name not in installed]
    if missing:
        only_nvrtc = all(name.startswith(("cuda-", "nvidia-")) for name in missing)  # their tests skip themselves
        return Line(False, "packages", "{} missing: {}".format(", ".join(missing), install), blocks=not only_nvrtc)
    other = ["{} {} (not {})".format(name, installed[name], pinned[name]) for name in wanted
             if name in pinned and installed[name].split("+")[0] != pinned[name]]
    if other:
        return Line(False, "packages", "{}: {} to get the tested versions".format(", ".join(other), install))
    return Line(True, "packages", "all {} at the pinned versions".format(len(wanted)))


# --- the report -------------------------------------------------------------------------------------------------------


def examine(venv, before):
    """All lines of the report, in order."""
    system, cuda = platform.system(), driver_cuda()
    installed, python = installed_packages(venv)
    need = 1 if "torch" in installed else 8 if system == "Linux" else 3  # torch for Linux brings CUDA
    lines = [
        check_system(system, platform.machine()),
        check_python(sys.version_info, can_make_venv(), system),
        check_compiler(find_compiler(), system),
        check_make(run("make", "--version"), system),
        check_disk(shutil.disk_usage(str(ROOT)).free / 1e9, need),
    ]
    if not before:
        lines += [
            check_driver(cuda),
            check_cupy(installed, cuda, python),
            check_packages(installed, required(system), pins(), python),
        ]
    return lines


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quiet", action="store_true", help="print only what is to be fixed")
    parser.add_argument("--before", action="store_true", help="leave out the packages: nothing is installed yet")
    parser.add_argument("--extra", action="store_true", help="print cuda12, cuda13 or nothing")
    parser.add_argument("--venv", default=".venv", help="the environment that make creates")
    options = parser.parse_args(arguments)
    if options.extra:
        print(extra_for(driver_cuda()) if platform.system() != "Darwin" else "")
        return 0
    lines = examine(options.venv, options.before)
    for line in lines:
        if not (options.quiet or options.before) or not line.ok:
            print(line)
    return int(any(line.blocks for line in lines))


if __name__ == "__main__":
    sys.exit(main())
