"""gRPC over HTTP/2 for servers, below any service: see ``docs/architecture/grpc.md``."""
