//! An answer for the gateway itself: it is read whole, not relayed.

use bytes::Bytes;
use headrace_core::{Error, Kind};
use http::HeaderMap;

use crate::upstream::{Progress, UpstreamRequest, Upstreams, open};

/// An answer to the gateway itself.
#[derive(Debug)]
pub struct Fetched {
    pub status: http::StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// Asks a model server on the gateway's own behalf. The answer is whole, and at most `max_bytes` long.
///
/// # Errors
/// Errors of [`headrace_core::Side::Upstream`].
pub async fn fetch(
    upstreams: &Upstreams,
    request: &UpstreamRequest,
    body: &Bytes,
    max_bytes: usize,
) -> Result<Fetched, Error> {
    let mut answer = open(upstreams, request, body, &mut 0).await?;
    let mut whole = Vec::new();
    let read = async {
        loop {
            let poll =
                |cx: &mut std::task::Context<'_>| answer.body.poll(cx, |data| whole.extend_from_slice(data));
            match std::future::poll_fn(poll).await? {
                Progress::Stopped(stopped) => return stopped.judge(false).map(drop),
                Progress::Data if whole.len() > max_bytes => {
                    return Err(Error::new(
                        Kind::UpstreamProtocol,
                        format!("the answer has more than {max_bytes} bytes"),
                    ));
                }
                Progress::Data => {}
            }
        }
    };
    tokio::time::timeout(request.head_timeout, read)
        .await
        .unwrap_or_else(|_| Err(Kind::UpstreamIdleTimeout.into()))?;
    answer.body.pool(upstreams, &request.target);
    Ok(Fetched { status: answer.status, headers: answer.headers, body: whole })
}
