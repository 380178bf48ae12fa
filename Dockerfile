# One image for each service:
#
#     docker build --target gateway|proposer|proposer-model|verifier|verifier-gpu .
#
# docker compose builds and runs them all. deploy/wheels may hold what is installed (deploy/wheels.sh
# fills it); then nothing is fetched. The gateway's and the proposer's images have no torch; a draft
# model runs in proposer-model, whose layers are those of verifier-gpu.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS python
COPY deploy/install.sh /usr/local/lib/outrider/

FROM python AS wheel
WORKDIR /src
COPY LICENSE README.md pyproject.toml ./
COPY protos protos
COPY gateway gateway
COPY outrider outrider
COPY proposer_service proposer_service
COPY verifier_service verifier_service
RUN --mount=type=bind,source=deploy/wheels,target=/wheels \
    sh /usr/local/lib/outrider/install.sh wheel --no-deps --wheel-dir /dist .

FROM python AS service
# Read-only at run time: the home of whatever wants one is the temporary folder.
ENV HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 outrider \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin outrider
LABEL org.opencontainers.image.source="outrider" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
STOPSIGNAL SIGTERM
ENTRYPOINT ["outrider"]

FROM service AS gateway
COPY deploy/requirements-gateway.txt /usr/local/lib/outrider/
RUN --mount=type=bind,source=deploy/wheels,target=/wheels \
    sh /usr/local/lib/outrider/install.sh install -r /usr/local/lib/outrider/requirements-gateway.txt
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    sh /usr/local/lib/outrider/install.sh install --no-deps /dist/*.whl \
    && install -d -o outrider -g outrider /var/lib/outrider
LABEL org.opencontainers.image.title="outrider-gateway" \
      org.opencontainers.image.description="OpenAI-compatible HTTP in front of Outrider's verifiers"
USER outrider
EXPOSE 8000
CMD ["gateway", "--help"]

FROM service AS proposer
COPY deploy/requirements-proposer.txt /usr/local/lib/outrider/
RUN --mount=type=bind,source=deploy/wheels,target=/wheels \
    sh /usr/local/lib/outrider/install.sh install -r /usr/local/lib/outrider/requirements-proposer.txt
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    sh /usr/local/lib/outrider/install.sh install --no-deps /dist/*.whl
LABEL org.opencontainers.image.title="outrider-proposer" \
      org.opencontainers.image.description="Guesses tokens for Outrider's verifiers, on a CPU"
USER outrider
EXPOSE 50052
CMD ["proposer", "--help"]

FROM service AS verifier
# yes: from deploy/wheels where it has any; no: from the index, whatever the folder has.
ARG USE_WHEELS=yes
COPY deploy/requirements-verifier.txt /usr/local/lib/outrider/
RUN --mount=type=bind,source=deploy/wheels,target=/wheels \
    sh /usr/local/lib/outrider/install.sh install -r /usr/local/lib/outrider/requirements-verifier.txt
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    sh /usr/local/lib/outrider/install.sh install --no-deps /dist/*.whl \
    && install -d -o outrider -g outrider /var/cache/outrider
ENV OUTRIDER_CACHE_DIR=/var/cache/outrider \
    HF_HOME=/var/cache/outrider/huggingface
LABEL org.opencontainers.image.title="outrider-verifier" \
      org.opencontainers.image.description="Holds the target model and verifies draft tokens exactly"
USER outrider
EXPOSE 50051
CMD ["verifier", "--help"]

FROM verifier AS verifier-gpu
USER root
# What torch.compile builds kernels with. Where PYTHON_IMAGE has it, nothing is fetched.
RUN command -v g++ || { \
        apt-get update \
        && apt-get install --yes --no-install-recommends g++ libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    }
USER outrider

# A draft model runs on the verifier's engine, and so needs what that needs; its layers are shared.
FROM verifier-gpu AS proposer-model
LABEL org.opencontainers.image.title="outrider-proposer-model" \
      org.opencontainers.image.description="Drafts tokens with a small model for Outrider's verifiers"
EXPOSE 50052
CMD ["proposer", "--help"]
USER outrider
