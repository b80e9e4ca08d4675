# An image of Tidegate: `docker build -t tidegate .`
# For both architectures: `docker buildx build --platform linux/amd64,linux/arm64 .`; each is built as on its own machine, so
# the one that is not yours is emulated, and slow.
# The module for Envoy, libtidegate.so: `docker build --target module --output . .`
# Its debug symbols, for perf and gdb: `docker build --target symbols --output symbols .`
#
# It runs as nobody, with a read-only root and without capabilities, and listens on 8080, 8081, 6070 and 9090.
# /bin/ratelimit is a second name of the binary: what starts envoyproxy/ratelimit starts it, as the entry point or as the
# argument of ours. /bin/limitador-server is a third one, with Limitador's command line: its operator starts it.
FROM rust:1.95-slim-bookworm AS build
ARG TARGETPLATFORM
WORKDIR /src
COPY . .
# The caches outlive a change of the sources: a second build compiles this repository's crates and none of the others. They
# are not part of the image. Each architecture has its own target folder.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=target-$TARGETPLATFORM,sharing=locked \
    cargo build --profile release-debug --locked \
    && mkdir -p /image/bin /symbols \
    && objcopy --only-keep-debug target/release-debug/tidegate /symbols/tidegate.debug \
    && objcopy --strip-all --add-gnu-debuglink=/symbols/tidegate.debug target/release-debug/tidegate /image/bin/tidegate \
    && ln -s tidegate /image/bin/ratelimit \
    && ln -s tidegate /image/bin/limitador-server

FROM build AS module-build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && python3 -m venv /zig \
    && /zig/bin/pip install cargo-zigbuild==0.24.0 ziglang==0.17.1 \
    && PATH=/zig/bin:$PATH packaging/module

FROM scratch AS module
COPY --from=module-build /src/target/module/ /

FROM scratch AS symbols
COPY --from=build /symbols/ /

# No shell and no package manager: the C library, and the system's certificate authorities, for TLS to a control plane, to
# Redis and to a collector of traces.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /image/bin/ /bin/
USER 65534:65534
EXPOSE 8080 8081 6070 9090
ENTRYPOINT ["/bin/tidegate"]
