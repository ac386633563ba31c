# The server in a container, for a CPU or an NVIDIA GPU:
#
#   docker build --target cpu -t dflash .      docker run -p 8000:8000 -e DFLASH_API_KEY=secret dflash demo
#   docker build --target cuda -t dflash .     docker run --gpus all ... -v models:/models dflash /models/FILE.gguf
#
# What is tested: `tools/try_dockerfile.py` executes the steps of both targets in an empty Debian root that debootstrap
# makes, runs `dflash info`, and asks the server for a completion, on the CPU. For the target cuda it also compiles a kernel
# with the CUDA compiler of the extra. Untested: the base images, a build by docker, and the target cuda on a GPU.
FROM debian:trixie-slim AS base
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/dflash && useradd --create-home dflash
COPY . /src
ENV PATH=/opt/dflash/bin:/usr/local/bin:/usr/bin:/bin

FROM base AS cuda
RUN pip install --no-cache-dir --constraint /src/constraints.txt "/src[serve,cuda13]" && rm -rf /src
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER dflash
WORKDIR /home/dflash
EXPOSE 8000
ENTRYPOINT ["dflash", "serve", "--host", "0.0.0.0"]
CMD ["demo"]

FROM base AS cpu
RUN pip install --no-cache-dir --constraint /src/constraints.txt "/src[serve]" && rm -rf /src
USER dflash
WORKDIR /home/dflash
EXPOSE 8000
ENTRYPOINT ["dflash", "serve", "--host", "0.0.0.0"]
CMD ["demo"]
