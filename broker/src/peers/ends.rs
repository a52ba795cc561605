//! Asks leaders where their logs end, many partitions in one call, and answers the same. Nobody is asked twice: who does not answer in
//! time is not in it.

use super::{Peers, Shared, wire};
use crate::partitions::ends::{AskedEnds, End, EndWanted};
use crate::partitions::messages::ShardMsg;
use futures::future::join_all;
use millpond_log::{BrokerId, PartitionId};
use millpond_proto::internal as proto;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Most partitions of one call: some 400 KiB of questions.
pub(super) const ENDS_MAX: usize = 10_000;

impl Peers {
    /// Asks the brokers that are said to lead partitions where these end, for at most `within`. Who does not lead them any more, or
    /// does not answer, is not in it.
    pub(crate) async fn ask_ends(
        &self,
        wanted: BTreeMap<BrokerId, Vec<EndWanted>>,
        within: Duration,
    ) -> BTreeMap<PartitionId, End> {
        let calls = wanted.iter().flat_map(|(broker, wanted)| wanted.chunks(ENDS_MAX).map(|some| (*broker, some)));
        let asked = calls.map(|(broker, some)| tokio::time::timeout(within, self.ask_ends_of(broker, some)));
        join_all(asked).await.into_iter().filter_map(Result::ok).flatten().flatten().collect()
    }

    async fn ask_ends_of(&self, broker: BrokerId, wanted: &[EndWanted]) -> Option<Vec<(PartitionId, End)>> {
        if broker == self.shared.me {
            return self.shared.ends(wanted.into()).await;
        }
        let link = self.shared.known().get(&broker).cloned()?;
        let caller = self.shared.caller(&link).await?;
        let request = proto::EndsRequest { wanted: wanted.iter().map(wire::end_wanted_out).collect() };
        let answer = caller.client().ends(caller.request(request)).await.ok()?.into_inner();
        Some(answer.ends.iter().filter_map(|end| wire::end_in(end).ok()).collect())
    }
}

impl Shared {
    /// Where the partitions end that are led here. `None` while this broker may have been replaced without hearing of it (rule B5).
    pub(super) async fn ends(&self, wanted: Arc<[EndWanted]>) -> Option<Vec<(PartitionId, End)>> {
        if !self.session.is_fresh() {
            return None;
        }
        let asked = self.shards.iter().map(|shard| {
            let (reply, answer) = oneshot::channel();
            // A shard that is gone ends the broker; nobody hears of its replicas any more.
            let _ = shard.send(ShardMsg::Ends(AskedEnds { wanted: Arc::clone(&wanted), reply }));
            answer
        });
        Some(join_all(asked).await.into_iter().filter_map(Result::ok).flatten().collect())
    }
}
