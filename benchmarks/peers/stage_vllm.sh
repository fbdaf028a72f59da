#!/usr/bin/env bash
# Fetches vLLM 0.26.0 (the last release for torch 2.11, CUDA 13) and what it needs beside torch and transformers, prunes
# it to what bf16 models need on Hopper, and packs it into two folders that can be taken to a machine without a network.
#
#   bash benchmarks/peers/stage_vllm.sh .peer        # makes .peer/p1 and .peer/p2
#
# Most of its time is xz's: XZ_LEVEL=0 takes a minute on 2 cores and makes 109 MB, 3 (the default) 94 to 100 MB.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-.peer}"
out=$(cd "${1:-.peer}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for version in 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17 2_12 2_5; do
    platforms+=(--platform "manylinux_${version}_x86_64")
done
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --abi cp312 --abi abi3 --abi none "${platforms[@]}" -d "$work/wheels" vllm==0.26.0 -r "$here/vllm-deps.txt"

mkdir "$work/site"
for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/site"; done
cd "$work/site"
# Some wheels keep their modules under NAME.data/purelib or platlib.
for folder in *.data/purelib *.data/platlib; do
    if [ -d "$folder" ]; then cp -r "$folder"/. .; fi
done
rm -rf ./*.data pycountry/locales
# On Hopper, FlashAttention 3 and Triton serve bf16 models; these serve others.
rm -rf vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so vllm/vllm-rs vllm/third_party/fmha_sm100 \
    vllm/third_party/deep_gemm vllm/_flashmla_C.abi3.so vllm/_qutlass_C.abi3.so

attention=vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so
kernels=vllm/_C_stable_libtorch.abi3.so
experts=vllm/_moe_C_stable_libtorch.abi3.so
for library in $attention $kernels $experts; do python3 "$here/prune_fatbin.py" "$library"; done

rm -rf "$out/p1" "$out/p2"
mkdir "$out/p1" "$out/p2"
pack() { tar -cf - "${@:2}" | xz -"${XZ_LEVEL:-3}" -T2 >"$1"; }
pack "$out/p1/attention.tar.xz" "$attention"
pack "$out/p2/kernels.tar.xz" "$kernels"
pack "$out/p2/experts.tar.xz" "$experts"
rm "$attention" "$kernels" "$experts"
pack "$out/p1/rest.tar.xz" .
du -sm "$out"/p*
