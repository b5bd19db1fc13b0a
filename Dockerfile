# The project and all that a run needs; the build ends with a one-step run. docs/docker.md tells how to use it.
#
# BASE holds Python 3.11 or newer with pip, and bash. A torch that it has stays: it fits its CUDA.
ARG BASE=pytorch/pytorch:2.13.0-cuda12.6-cudnn9-runtime
FROM ${BASE}

ENTRYPOINT []
WORKDIR /opt/bert

# The packages first: a change of the code does not install them again. pip's own variables say where they come from;
# their values can be read in the image's history, so they are no place for a password.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
COPY requirements.txt ./
COPY scripts/docker/install.sh scripts/docker/
RUN scripts/docker/install.sh requirements.txt

# Nothing but what .dockerignore lets through; readable by any user, whatever the umask of the checkout was.
COPY . ./
RUN chmod -R a+rX,go-w . && python3 -m compileall -q benchmarks tools mlperf_log_utils.py scripts

# A user without a name, as the caller of run_with_docker.sh is one too.
USER 10001:10001
ENV HOME=/tmp
RUN scripts/docker/check.sh
HEALTHCHECK NONE

ARG REVISION=unknown
LABEL org.opencontainers.image.title="mlperf-bert" \
      org.opencontainers.image.description="A training harness for the MLPerf BERT benchmark" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
CMD ["./run_and_time.sh"]
