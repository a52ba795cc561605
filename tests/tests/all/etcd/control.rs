//! What controllers and whoever ends another's session rely on, over a real etcd of each version.

use super::{VERSIONS, cluster, connect};
use millpond_metadata::kv::Kv;
use std::sync::Arc;

/// Rules E1a, B3, K4, E8.
#[tokio::test]
async fn controllers_and_ended_sessions() {
    for tool in VERSIONS {
        let Some(cluster) = cluster("controllers_and_ended_sessions", tool, 1).await else { continue };
        let kv: Arc<dyn Kv> = Arc::new(connect(&cluster.url()).await);
        crate::control::promises(&kv).await;
    }
}
