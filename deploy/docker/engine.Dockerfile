# The demo's engine: torch, Transformers and the hooks; no part of the sidecar's that needs a package.
#   docker build --file deploy/docker/engine.Dockerfile --tag nanwatch-engine .
#
# BASE         has python3 >= 3.11; constraints.txt holds wheels for 3.11
# BUILD_BASE   the same, with venv, and with what pip needs to find packages where you are
# TORCH        the torch to install, by default the one that constraints.txt pins
# TORCH_INDEX  a package index for torch alone, say one with builds for the CPU only
ARG BASE=python:3.11-slim-bookworm
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
ARG TORCH=
ARG TORCH_INDEX=
WORKDIR /build
COPY constraints.txt ./
RUN python3 -m venv tools && tools/bin/pip install --no-cache-dir --constraint constraints.txt hatchling
RUN python3 -m venv --without-pip /opt/nanwatch
# Torch first and by itself: it is the largest, and changes least. Another torch, or another index,
# comes with other versions of what torch needs.
RUN constraint=; [ -n "$TORCH$TORCH_INDEX" ] || constraint='--constraint constraints.txt'; \
    tools/bin/pip --python /opt/nanwatch/bin/python install --no-cache-dir --only-binary :all: \
        $constraint ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
        "${TORCH:-$(grep '^torch==' constraints.txt)}"
COPY pyproject.toml README.md LICENSE ./
COPY hooks hooks
COPY sidecar sidecar
RUN tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheel . \
 && tools/bin/pip --python /opt/nanwatch/bin/python install --no-cache-dir --only-binary :all: \
        --constraint constraints.txt "$(echo wheel/*.whl)[demo]"

FROM ${BASE}
# As in the sidecar's image: a volume that is new takes owner and mode from the image.
RUN groupadd --gid 10600 nanwatch \
 && useradd --uid 10601 --gid nanwatch --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin engine \
 && install --directory --owner engine --group nanwatch --mode 2770 /run/nanwatch
COPY --from=build /opt/nanwatch /opt/nanwatch
ENV PATH=/opt/nanwatch/bin:$PATH PYTHONUNBUFFERED=1 NANWATCH_JOURNAL=/run/nanwatch \
    NANWATCH_JOURNAL_GROUP=nanwatch HOME=/tmp
USER 10601:10600
ENTRYPOINT ["nanwatch"]
CMD ["demo", "--no-sidecar"]
