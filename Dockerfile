# lbclient with its command line and the programs of examples/: any task of the fleet
# in docker-compose.yml, or a base for a server of your own.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY lbclient lbclient
COPY examples/fleet examples/fleet
RUN python3 -m venv /opt/lbclient \
 && /opt/lbclient/bin/python -m pip install --no-cache-dir --disable-pip-version-check '.[dns,k8s,redis]' \
 && /opt/lbclient/bin/python -m pip uninstall --quiet --yes setuptools pip

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/lbclient /opt/lbclient
COPY examples /opt/examples
ENV PATH=/opt/lbclient/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /opt/examples
# Nobody in particular: it owns no file and needs none.
USER 65534:65534
EXPOSE 50051 9464
# A lame duck is unhealthy, and so is a task that is starting. It takes 0.3 s of CPU:
# with a tenth of one that is 3 s and more, so only the probe's own timeout is short.
HEALTHCHECK --interval=10s --timeout=10s --start-period=10s \
  CMD ["lbclient", "probe", "--timeout", "2", "localhost:50051"]
CMD ["lbclient", "--help"]
