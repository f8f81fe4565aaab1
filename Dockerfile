# A small image of the one program:
#
#   docker build -t changefeed .
#   docker run --rm changefeed --help
FROM rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/source/target \
    cargo build --release --locked --package changefeed-cli \
    && cp target/release/changefeed /usr/local/bin/changefeed

FROM debian:bookworm-slim
# The roots by which certificates of databases and webhooks are judged.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --home-dir /var/lib/changefeed --create-home changefeed
COPY --from=build /usr/local/bin/changefeed /usr/local/bin/changefeed
USER changefeed
# Where an SQLite file belongs, if there is one.
WORKDIR /var/lib/changefeed
VOLUME /var/lib/changefeed
EXPOSE 8787
HEALTHCHECK --interval=5s --start-period=10s \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8787 && printf 'GET /readyz HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && head -1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["changefeed"]
# Listens for other containers, which it does only if there are tokens: `changefeed token create`.
CMD ["serve", "--listen", "0.0.0.0:8787"]
