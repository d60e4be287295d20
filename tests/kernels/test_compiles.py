"""The kernel compiles for the GPUs that people have, without one being there, and reads 16 bytes at a time.

4096 values in 256 threads are 16 a thread: 64 bytes of float32 in 4 loads, 32 of bfloat16 in 2
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

COMPILE = """
import itertools, json, warnings
warnings.simplefilter("ignore")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from nanwatch.kernels import inspect_parts
from nanwatch.row_kernel import BLOCK, WARPS

def compiled(target, pointer):
    constants = {"KIND": 2 if pointer == "*u8" else 0, "ALIGNED": True, "BLOCK": BLOCK}
    types = {"logits": pointer, "cells": "*i32", "row_stride": "i64", "columns": "i32", "part_columns": "i32"}
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(inspect_parts, signature=types, constexprs=constants)
    return triton.compile(source, target=target, options={"num_warps": WARPS}).asm

for arch, pointer in itertools.product((80, 90), ("*fp32", "*bf16", "*fp16", "*u8")):
    code = compiled(GPUTarget("cuda", arch, 32), pointer)["ptx"]
    print(json.dumps([f"sm_{arch}", pointer, code.count("ld.global.v4"), "max.NaN" in code]))
code = compiled(GPUTarget("hip", "gfx942", 64), "*bf16")["amdgcn"]
print(json.dumps(["gfx942", "*bf16", code.count("_load_dwordx4"), True]))
"""
LOADS = {"*fp32": 4, "*bf16": 2, "*fp16": 2, "*u8": 1}


def test_it_compiles_for_nvidia_and_amd_and_reads_16_bytes_at_a_time() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    nvidia = [[arch, pointer, loads, True] for arch in ("sm_80", "sm_90") for pointer, loads in LOADS.items()]
    assert found[:-1] == nvidia
    assert found[-1][2] > 0, found
