#!/usr/bin/env bash
# The server that this repository builds; the gate adds --model-path, --port and the rest, as SGLang spells them.
exec .gate/.venv/bin/python -m ling_runtime.server "$@"
