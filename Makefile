# Everything one types for this course.  `make` alone lists it.
#
# Which Python?  1. make ... PYTHON=python   an environment of yours, used as it is
#                2. the conda environment of environment.yml, if it is active
#                3. .venv (or VENV=folder), created here and kept up to date

VENV ?= .venv
FITS  = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
BASE ?= $(firstword $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
          $$p -c '$(FITS)' 2>/dev/null && echo $$p; done; true) python3)

ifeq ($(CONDA_DEFAULT_ENV),online-softmax)
  PYTHON ?= python
endif
ifdef PYTHON
  PY    = $(PYTHON)
  READY =
  DOCTOR = $(PY) tools/doctor.py --venv=
else
  PY    = $(VENV)/bin/python
  READY = $(VENV)/.ready
  DOCTOR = $(if $(wildcard $(PY)),$(PY),$(BASE)) tools/doctor.py --venv=$(VENV)
endif

help:
	@echo "make run             run every notebook, write web pages to build/html      ONLY=03 for one of them"
	@echo "make lab             open the course in JupyterLab"
	@echo "make test            unit tests, and every notebook against its stored outputs"
	@echo "make solutions       every notebook once more, with the solutions of all exercises in place"
	@echo "make doctor          what this machine has, what it lacks, what to type"
	@echo "make gpu-check       the tests on an NVIDIA GPU"
	@echo "make bench TOPIC=..  measure on an NVIDIA GPU and record the results"
	@echo "make update          run the notebooks and store their outputs              ONLY=03 for one of them"
	@echo "make clean           remove what these commands wrote, except $(VENV)"
	@echo
	@echo "The first of them creates $(VENV) (VENV=folder for another place, BASE=python3.12 for another Python)."
	@echo "PYTHON=python uses your own environment instead; an active conda environment online-softmax is found by itself."

# --- the environment

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(BASE) tools/doctor.py --before --venv=$(VENV)
	@echo "Installing the course into $(VENV) (once; minutes, by your network)"
	@$(BASE) -m venv $(VENV) || { echo "No environment in $(VENV): remove that folder and type the command again."; exit 1; }
	@extra=$$($(BASE) tools/doctor.py --extra); \
	  $(VENV)/bin/python -m pip install $(if $(CI),--quiet) -c constraints.txt -e ".[test$${extra:+,$$extra}]" \
	  || { echo "The installation stopped, see above: type the command again, it goes on where it stopped."; exit 1; }
	@touch $@

ready: $(READY)
	@$(DOCTOR) --quiet

# --- the course

run: ready
	@$(PY) tools/run_notebooks.py --html build/html $(if $(ONLY),--only $(ONLY))

update: ready
	@$(PY) tools/run_notebooks.py --update $(if $(ONLY),--only $(ONLY))

lab: ready
	@$(PY) -m jupyterlab notebooks

# Two processes share the files; a notebook's cells stay together (--dist loadscope).
test: ready
	@$(PY) -m pytest --nbval -n 2 --dist loadscope tests notebooks

solutions: ready
	@$(PY) tools/run_solutions.py $(if $(ONLY),--only $(ONLY))

gpu-check: ready
	@SOFTMAX_DEVICE=gpu $(PY) -c "from helpers.device import device_sentence; print(device_sentence)" \
	  || { echo "No GPU to check: make doctor says what is missing; make test needs none."; exit 1; }
	@SOFTMAX_DEVICE=gpu $(PY) -m pytest --nbval tests notebooks

bench: ready
	@test -n "$(TOPIC)" || { echo "Say what to measure, e.g. make bench TOPIC=ladders"; exit 1; }
	@$(PY) -m helpers.bench $(TOPIC)

doctor:
	@$(DOCTOR)

clean:
	rm -rf build .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -path ./.venv -prune -o '(' -name __pycache__ -o -name .ipynb_checkpoints ')' -prune -exec rm -rf {} +

.PHONY: help ready run update lab test solutions gpu-check bench doctor clean
