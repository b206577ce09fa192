"""Envoy's configuration: a relay with HTTP/3, HTTP/2 and HTTP/1.1 on one port."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TYPES = "type.googleapis.com/envoy.extensions"


def envoy_config(upstream: str, folder: Path, host: str, port: int) -> str:
    """Returns the configuration as JSON. `upstream`: `http://address:port`."""
    upstream_host, _, upstream_port = upstream.removeprefix("http://").partition(":")
    listeners = [_over_quic(folder, host, port), _over_tcp(folder, host, port)]
    cluster = _cluster(upstream_host, int(upstream_port))
    return json.dumps({"static_resources": {"listeners": listeners, "clusters": [cluster]}})


def _over_quic(folder: Path, host: str, port: int) -> dict[str, Any]:
    kind = f"{TYPES}.transport_sockets.quic.v3.QuicDownstreamTransport"
    socket = {"name": "quic", "typed_config": {"@type": kind, "downstream_tls_context": _tls(folder)}}
    options = {"http3_protocol_options": {"quic_protocol_options": {"max_concurrent_streams": 1000}}}
    return {
        "name": "quic",
        "address": _address(host, port, "UDP"),
        # Without prefer_gro Envoy drops every datagram that the kernel hands on unsplit, as loopback does.
        "udp_listener_config": {"quic_options": {}, "downstream_socket_config": {"prefer_gro": True}},
        "filter_chains": [{"transport_socket": socket, "filters": [_manager("HTTP3", options)]}],
    }


def _over_tcp(folder: Path, host: str, port: int) -> dict[str, Any]:
    kind = f"{TYPES}.transport_sockets.tls.v3.DownstreamTlsContext"
    context = _tls(folder)
    context["common_tls_context"]["alpn_protocols"] = ["h2", "http/1.1"]
    socket = {"name": "tls", "typed_config": {"@type": kind, **context}}
    options = {"http2_protocol_options": {"max_concurrent_streams": 1000}}
    return {
        "name": "tcp",
        "address": _address(host, port, "TCP"),
        "filter_chains": [{"transport_socket": socket, "filters": [_manager("AUTO", options)]}],
    }


def _manager(codec: str, options: dict[str, Any]) -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "model", "timeout": "0s"}}
    hosts = [{"name": "all", "domains": ["*"], "routes": [route]}]
    router = {"name": "router", "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"}}
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "codec_type": codec,
        "stat_prefix": "in",
        "stream_idle_timeout": "0s",
        "route_config": {"name": "all", "virtual_hosts": hosts},
        "http_filters": [router],
        **options,
    }
    return {"name": "http", "typed_config": manager}


def _cluster(host: str, port: int) -> dict[str, Any]:
    most = {"max_connections": 10000, "max_requests": 10000, "max_pending_requests": 10000}
    endpoint = {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
    return {
        "name": "model",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [most]},
        "load_assignment": {"cluster_name": "model", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _address(host: str, port: int, protocol: str) -> dict[str, Any]:
    return {"socket_address": {"protocol": protocol, "address": host, "port_value": port}}


def _tls(folder: Path) -> dict[str, Any]:
    secret = {
        "certificate_chain": {"filename": str(folder / "cert.pem")},
        "private_key": {"filename": str(folder / "key.pem")},
    }
    return {"common_tls_context": {"tls_certificates": [secret]}}
