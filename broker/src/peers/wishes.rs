//! Asks leaders to hand over (rule E9). A wish is not more than that: whoever asks looks at who leads.

use super::{Peers, Shared, wire};
use crate::partitions::messages::ShardMsg;
use millpond_core::replica::{Input, Transfer};
use millpond_log::{BrokerId, PartitionId};
use millpond_proto::internal::TransferRequest;
use std::time::Duration;
use tokio::time::timeout;

/// Most wishes in one call.
pub(super) const WISHES_MAX: usize = 10_000;

/// How long a broker may take to say that it has heard.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

impl Peers {
    /// Asks `leader`, which may be this broker, to hand over. Whether it has heard of it.
    pub(crate) async fn wish(&self, leader: BrokerId, wishes: &[(PartitionId, Transfer)]) -> bool {
        if leader == self.shared.me {
            self.shared.take_wishes(wishes);
            return true;
        }
        let Some(link) = self.shared.known().get(&leader).cloned() else { return false };
        let asked = async {
            let caller = self.shared.caller(&link).await?;
            let handovers = wishes.iter().map(|(partition, wish)| wire::wish_out(*partition, wish)).collect();
            caller.client().transfer(caller.request(TransferRequest { handovers })).await.ok()
        };
        timeout(HEARD_WITHIN, asked).await.is_ok_and(|answer| answer.is_some())
    }
}

impl Shared {
    /// Hands wishes to the shards.
    pub(super) fn take_wishes(&self, wishes: &[(PartitionId, Transfer)]) {
        for (partition, wish) in wishes {
            let step = ShardMsg::Step { partition: *partition, input: Input::Transfer(*wish) };
            // A shard that is gone ends the broker.
            let _ = self.shard(*partition).send(step);
        }
    }
}
