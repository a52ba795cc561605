# The broker in a small image. Build: docker build -t millpond .    Run: docker run -p 7400:7400 -p 9092:9092 millpond
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/build \
    CARGO_TARGET_DIR=/build cargo build --release --locked --package millpond-cli && \
    cp /build/release/millpond /usr/local/bin/millpond

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* && \
    useradd --system --uid 7400 --home-dir /var/lib/millpond --create-home millpond
COPY --from=build /usr/local/bin/millpond /usr/local/bin/millpond
USER millpond
WORKDIR /var/lib/millpond
VOLUME /var/lib/millpond
EXPOSE 7400 7480 9092
# SIGTERM drains: give it longer than the default 10 s (docker stop --time 60).
STOPSIGNAL SIGTERM
ENTRYPOINT ["millpond"]
# One broker, all on the volume. In a fleet give the command `broker` your own metadata and object store.
CMD ["broker", "--insecure", "--data-dir", "/var/lib/millpond/broker", \
     "--metadata", "embedded:/var/lib/millpond/metadata", "--object-store", "file:///var/lib/millpond/objects", \
     "--grpc-listen", "0.0.0.0:7400", "--grpc-advertise", "localhost:7400", \
     "--kafka-listen", "0.0.0.0:9092", "--kafka-advertise", "localhost:9092", "--http-listen", "0.0.0.0:7480"]
