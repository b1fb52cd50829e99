"""pyproject.toml, environment.yml and constraints.txt agree, and so do the files that repeat their numbers."""

import re
import tomllib
from pathlib import Path

import doctor
import pytest
import run_notebooks
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


def name_of(requirement: str) -> str:
    return doctor.normal(re.match(r"[\w.-]+", requirement)[0])


def test_every_direct_dependency_is_pinned():
    direct = {name_of(line) for line in [*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]}
    assert direct <= set(doctor.pins()), f"without a line in constraints.txt: {direct - set(doctor.pins())}"


def test_constraints_are_exact_and_name_no_address():
    for line in CONSTRAINTS.splitlines():
        assert not line or line.startswith("#") or re.fullmatch(r"[a-z0-9-]+==[\w.]+", line), line


def test_versions_live_in_constraints_only():
    for requirement in [*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]:
        assert not re.search(r"[<>=~]=?\s*\d", requirement), requirement


def test_conda_lists_the_same_packages():
    pip = next(entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict))
    assert pip[:2] == ["-c constraints.txt", "-e ."]
    assert sorted(pip[2:]) == sorted(PROJECT["dependencies"] + EXTRAS["test"])


def test_conda_has_a_supported_python_and_a_compiler():
    python = next(entry for entry in CONDA["dependencies"] if str(entry).startswith("python="))
    assert doctor.OLDEST <= tuple(map(int, python.split("=")[1].split("."))) <= doctor.NEWEST
    assert "cxx-compiler" in CONDA["dependencies"]
    assert f"ifeq ($(CONDA_DEFAULT_ENV),{CONDA['name']})" in (ROOT / "Makefile").read_text()


def test_python_versions_agree():
    assert PROJECT["requires-python"] == ">={}.{}".format(*doctor.OLDEST)


@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_cuda_extras_leave_macos_out(extra):
    assert all(requirement.endswith("; sys_platform != 'darwin'") for requirement in EXTRAS[extra])
    assert f"cupy-{extra}x" in {name_of(requirement) for requirement in EXTRAS[extra]}


def test_nvrtc_tests_install_on_linux_only():
    cuda = [requirement for requirement in EXTRAS["test"] if name_of(requirement).startswith(("cuda-", "nvidia-"))]
    assert cuda and all(requirement.endswith("; sys_platform == 'linux'") for requirement in cuda)


def test_cuda_libraries_share_one_version():
    """torch's CUDA build pins CUDA 13.0; other versions of these wheels could not be installed beside it."""
    assert {doctor.pins()[name].rsplit(".", 1)[0] for name in doctor.pins()
            if name.startswith("nvidia-") and not name.endswith("-cu12")} == {"13.0"}


def test_doctor_knows_the_packages_without_a_toml_reader():
    wanted = {name_of(requirement) for requirement in PROJECT["dependencies"] + EXTRAS["test"]}
    assert set(doctor.required("Linux")) == wanted | {PROJECT["name"]}
    assert not any(name.startswith(("cuda-", "nvidia-")) for name in doctor.required("Darwin"))


def test_make_run_and_make_test_share_the_cell_timeout():
    assert f"--nbval-cell-timeout={run_notebooks.CELL_TIMEOUT}" in (ROOT / "pyproject.toml").read_text()
