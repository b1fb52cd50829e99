"""`make doctor`: every situation is faked once, and each [fix] says what to type."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import doctor
import pytest

ROOT = Path(__file__).resolve().parents[1]
PINNED = {"numpy": "2.0.0", "torch": "2.13.0"}
SMI = "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0     |"
PROC = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jan  2 03:04:05 UTC 2026"


@pytest.fixture
def debian(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda command: "/usr/bin/apt-get" if command == "apt-get" else None)


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda command: None)


def is_fix(line, *words, blocks):
    assert str(line).startswith("[fix]") and line.blocks == blocks
    assert all(word in line.text for word in words), line.text


def is_ok(line, *words):
    assert str(line).startswith("[ok]") and not line.blocks
    assert all(word in line.text for word in words), line.text


def test_system():
    is_ok(doctor.check_system("Linux", "x86_64"))
    is_ok(doctor.check_system("Darwin", "arm64"))
    is_fix(doctor.check_system("Darwin", "x86_64"), "Intel Mac", blocks=True)
    is_fix(doctor.check_system("Windows", "AMD64"), "wsl --install", blocks=True)


@pytest.mark.parametrize("version", [(3, 8, 18), (3, 10, 13), (3, 15, 0)])
def test_python_that_does_not_fit(version):
    is_fix(doctor.check_python(version, True, "Linux"), "make run BASE=", blocks=True)


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 14, 2)])
def test_python_that_fits(version):
    is_ok(doctor.check_python(version, True, "Linux"), ".".join(map(str, version)))


def test_missing_venv_module(debian):
    is_fix(doctor.check_python((3, 12, 1), False, "Linux"), "apt-get install python3-venv", blocks=True)


def test_compiler(debian):
    is_ok(doctor.check_compiler(("g++", "g++ 12.2.0"), "Linux"), "12.2.0")
    is_fix(doctor.check_compiler(None, "Linux"), "apt-get install g++", blocks=True)
    is_fix(doctor.check_compiler(None, "Darwin"), "xcode-select --install", blocks=True)


def test_compiler_without_a_package_manager(bare):
    is_fix(doctor.check_compiler(None, "Linux"), "conda install cxx-compiler", blocks=True)


def test_make(debian):
    is_ok(doctor.check_make("GNU Make 4.3\nmore", "Linux"), "4.3")
    is_fix(doctor.check_make(None, "Linux"), "apt-get install make", blocks=True)


def test_disk():
    is_ok(doctor.check_disk(9.0, 8))
    is_fix(doctor.check_disk(2.0, 8), "2 GB free, 8 needed", blocks=True)


def test_driver():
    is_ok(doctor.check_driver(None), "CPU device")
    is_ok(doctor.check_driver((12, 4)), "12.4")
    is_fix(doctor.check_driver((11, 8)), "525 or newer", blocks=False)


def test_driver_version_from_nvidia_smi_and_proc():
    assert doctor.cuda_of_smi(SMI) == (13, 0)
    assert doctor.cuda_of_smi(SMI.replace("CUDA Version", "CUDA UMD Version")) == (13, 0)
    assert doctor.cuda_of_smi("NVIDIA-SMI has failed because it could not communicate with the driver") is None
    assert doctor.cuda_of_proc(PROC.format("580.65.06")) == (13, 0)
    assert doctor.cuda_of_proc(PROC.format("535.183.01")) == (12, 0)
    assert doctor.cuda_of_proc(PROC.format("470.42.01")) == (11, 0)
    assert doctor.cuda_of_proc("") is None


def test_driver_is_asked_in_three_ways(monkeypatch):
    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(doctor.ctypes, "CDLL", no_library)
    monkeypatch.setattr(doctor, "run", lambda *command: SMI)
    assert doctor.driver_cuda() == (13, 0)
    monkeypatch.setattr(doctor, "run", lambda *command: None)
    monkeypatch.setattr(doctor, "read", lambda path: PROC.format("525.60.13"))
    assert doctor.driver_cuda() == (12, 0)
    monkeypatch.setattr(doctor, "read", lambda path: "")
    assert doctor.driver_cuda() is None

    class Library:
        @staticmethod
        def cuDriverGetVersion(number):
            number._obj.value = 12080
            return 0

    monkeypatch.setattr(doctor.ctypes, "CDLL", lambda name: Library)
    assert doctor.driver_cuda() == (12, 8)


def test_extra_for_the_driver():
    fits = {None: "", (11, 8): "", (12, 9): "cuda12", (13, 0): "cuda13", (14, 1): "cuda13"}
    assert {cuda: doctor.extra_for(cuda) for cuda in fits} == fits


def test_cupy():
    cupy12, cupy13 = {"cupy-cuda12x": "14.2.0"}, {"cupy-cuda13x": "14.2.0"}
    is_ok(doctor.check_cupy({}, None, "python"), "not needed")
    is_ok(doctor.check_cupy({}, (11, 8), "python"), "not needed")
    is_ok(doctor.check_cupy({}, (13, 0), ""), "make run")
    is_ok(doctor.check_cupy(cupy13, (13, 0), "python"), "cupy-cuda13x 14.2.0")
    is_ok(doctor.check_cupy(cupy12, (13, 0), "python"), "cupy-cuda12x")  # drivers run programs of an older CUDA
    is_ok(doctor.check_cupy({"cupy": "14.2.0"}, (12, 2), "python"), "cupy 14.2.0")  # conda's own
    is_fix(doctor.check_cupy({}, (12, 2), "my/py"), "my/py -m pip install -c constraints.txt -e '.[cuda12]'", blocks=False)
    is_fix(doctor.check_cupy(cupy13, (12, 2), "python"), "too new", "uninstall -y cupy-cuda13x", "[cuda12]", blocks=False)
    both = doctor.check_cupy({**cupy12, **cupy13}, (13, 0), "python")
    is_fix(both, "uninstall -y cupy-cuda12x cupy-cuda13x", "[cuda13]", blocks=False)


def test_packages():
    def check(installed, python="python"):
        return doctor.check_packages(installed, ["numpy", "torch", "nvidia-cuda-nvrtc"], PINNED, python)

    good = {"numpy": "2.0.0", "torch": "2.13.0+cpu", "nvidia-cuda-nvrtc": "13.0.88"}
    is_ok(check(good), "all 3")
    is_ok(check({}, python=""), "make run")
    is_fix(check({}), "numpy, torch", "pip install -c constraints.txt", blocks=True)
    is_fix(check({**good, "numpy": "2.1.0"}), "numpy 2.1.0 (not 2.0.0)", blocks=False)
    is_fix(check({"numpy": "2.0.0", "torch": "2.13.0"}), "nvidia-cuda-nvrtc missing", blocks=False)


def test_required_packages_depend_on_the_system():
    assert "nvidia-cuda-nvrtc" in doctor.required("Linux") and "nvidia-cuda-nvrtc" not in doctor.required("Darwin")
    assert {"online-softmax-course", "torch", "pytest"} <= set(doctor.required("Darwin"))


# --- the program itself, on a made-up PATH ----------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path):
    """A folder for PATH with make and nothing else, and a function that runs the doctor with it."""
    (tmp_path / "make").symlink_to(shutil.which("make"))

    def examine(*arguments):
        done = subprocess.run([sys.executable, ROOT / "tools" / "doctor.py", *arguments], env={"PATH": str(tmp_path)},
                              capture_output=True, text=True)
        assert not done.stderr
        return done

    examine.path = tmp_path
    return examine


def command(path: Path, script: str):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_a_compiler_nothing_goes(machine):
    done = machine("--before")
    assert done.returncode == 1
    assert [line[:20] for line in done.stdout.splitlines()] == ["[fix] C++ compiler  "]


def test_a_compiler_that_does_not_compile_is_none(machine):
    command(machine.path / "g++", 'test "$1" = --version && echo "g++ (broken) 1.0"')
    assert "[fix] C++ compiler" in machine().stdout


@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_any_working_compiler_will_do(machine, name):
    found = shutil.which(name) or pytest.skip(f"{name} is not on this machine")
    command(machine.path / name, f'PATH={os.environ["PATH"]} exec {found} "$@"')
    done = machine("--before")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"[ok]  C++ compiler   {name}" in machine().stdout


@pytest.mark.parametrize("cuda, extra", [("11.8", ""), ("12.4", "cuda12"), ("13.0", "cuda13")])
def test_extra_from_a_faked_driver(machine, cuda, extra):
    if sys.platform == "darwin" or doctor.driver_cuda():
        pytest.skip("this machine cannot fake a driver")
    command(machine.path / "nvidia-smi", f"echo '| CUDA Version: {cuda} |'")
    assert machine("--extra").stdout.strip() == extra
    assert f"supports CUDA {cuda}" in machine().stdout


def test_doctor_runs_on_old_pythons():
    """Syntax and imports of Python 3.8, tried with the oldest Python that this machine has."""
    compile((ROOT / "tools" / "doctor.py").read_text(), "doctor.py", "exec")
    for name in ("python3.8", "python3.9", "python3.10"):
        version = doctor.run(name, "--version")
        if version:
            done = subprocess.run([name, ROOT / "tools" / "doctor.py"], capture_output=True, text=True)
            assert done.returncode == 1 and "[fix] Python" in done.stdout and not done.stderr
            return
    import ast
    ast.parse((ROOT / "tools" / "doctor.py").read_text(), feature_version=(3, 8))
