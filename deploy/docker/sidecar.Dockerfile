# The sidecar: reads the journal and serves it over HTTP; holds no torch.
#   docker build --file deploy/docker/sidecar.Dockerfile --tag nanwatch-sidecar .
#
# BASE        has python3 >= 3.11; constraints.txt holds wheels for 3.11
# BUILD_BASE  the same, with venv, and with what pip needs to find packages where you are
ARG BASE=python:3.11-slim-bookworm
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
WORKDIR /build
COPY constraints.txt ./
RUN python3 -m venv tools && tools/bin/pip install --no-cache-dir --constraint constraints.txt hatchling
RUN python3 -m venv --without-pip /opt/nanwatch
COPY pyproject.toml README.md LICENSE ./
COPY hooks hooks
COPY sidecar sidecar
RUN tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheel . \
 && tools/bin/pip --python /opt/nanwatch/bin/python install --no-cache-dir --only-binary :all: \
        --constraint constraints.txt "$(echo wheel/*.whl)[sidecar]"

FROM ${BASE}
# The journal's folder is the engine's, and of the group that the sidecar is in: a volume that is new
# takes its owner and mode from the image that it is first mounted into, whichever that is.
RUN groupadd --gid 10600 nanwatch \
 && useradd --uid 10601 --gid nanwatch --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin engine \
 && useradd --uid 10602 --gid nanwatch --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin sidecar \
 && install --directory --owner engine --group nanwatch --mode 2770 /run/nanwatch
COPY --from=build /opt/nanwatch /opt/nanwatch
ENV PATH=/opt/nanwatch/bin:$PATH PYTHONUNBUFFERED=1 NANWATCH_JOURNAL=/run/nanwatch
# By number: Kubernetes' runAsNonRoot does not look names up.
USER 10602:10600
EXPOSE 10626
ENTRYPOINT ["nanwatch"]
CMD ["sidecar"]
