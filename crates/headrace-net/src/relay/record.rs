//! Relaying an answer into a record, for clients that are told it from there.
//!
//! In: a request for a model server, and a buffer. Out: the answer in the buffer, and a [`RelayReport`]. It must not
//! know who reads it (`relay/playback.rs`).

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::downstream::Downstream;
use crate::relay::progress::Progress;
use crate::relay::report::RelayReport;
use crate::relay::{self, ClientSide, RelayRequest};
use crate::replay::{Buffer, Writer};
use crate::reply::Reply;
use crate::shares::KeptBody;
use crate::worker::Worker;

/// Begins to relay into a record, on the thread of this worker.
pub fn start(
    (worker, runtime): (&Arc<Worker>, &Handle),
    request: RelayRequest,
    buffer: Arc<Buffer>,
    reply: Reply<Box<RelayReport>>,
) {
    let worker = worker.clone();
    runtime.spawn(async move {
        let report = run(&worker, request, buffer).await;
        reply.send(Ok(Box::new(report)));
    });
}

/// Relays into a record. When nothing of the answer could be had (`untouched`), another upstream may be tried: the
/// record stays open.
async fn run(worker: &Arc<Worker>, request: RelayRequest, buffer: Arc<Buffer>) -> RelayReport {
    let body = buffer.request_body();
    let writer = Writer::new(buffer);
    let mut down = Downstream::Record(writer);
    let client = ClientSide {
        down: &mut down,
        // No handler commands it: what ends it is that its readers leave.
        abandoned: Box::pin(std::future::pending()),
        worker,
        share: None,
        progress: &Progress::default(),
        kept_body: &mut body.map(KeptBody::uncharged),
        is_head_request: false,
    };
    let report = relay::run(client, request).await;
    if let Downstream::Record(writer) = down {
        writer.close(report.cause, report.error.clone());
    }
    report
}
