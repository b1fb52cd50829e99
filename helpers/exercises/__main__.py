"""Judge one kernel on the GPU, in a process of its own: `python -m helpers.exercises 07-merge < kernel.cu` prints {"wrong": hint}."""

import json
import sys

from helpers.exercises import Wrong, all_exercises, kernels

kernels.on_gpu = True
try:
    all_exercises()[sys.argv[1]].judge(sys.stdin.read())
    wrong = ""
except Wrong as error:
    wrong = str(error)
print(json.dumps({"wrong": wrong}))  # empty if it is right
