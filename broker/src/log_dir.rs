//! What this broker's disk holds, for operators. It reads, and changes nothing.

use crate::api::{LogDir, TailOnDisk};
use crate::broker::Broker;
use crate::catalog::{Local, PartitionHandle};
use std::path::Path;

impl Broker {
    /// The folder of the broker's data: its disk, and the replicas that are open here.
    pub async fn log_dir(&self) -> LogDir {
        let path = self.inner().config.data_dir.clone();
        let tables = self.inner().catalog.tables();
        let mut tails = Vec::new();
        for topic in tables.topics() {
            let held = topic.partitions.iter().filter_map(|handle| Some((handle, handle.local.as_ref()?)));
            let tail = |(handle, local): (&PartitionHandle, &Local)| {
                let view = local.view.borrow();
                TailOnDisk {
                    topic: topic.record.name.to_string(),
                    partition: handle.id.index,
                    bytes: self.inner().wal.partition_bytes(handle.id),
                    lag: view.visible.hw.0.saturating_sub(view.visible.end.0),
                }
            };
            tails.extend(held.map(tail));
        }
        let shown = path.display().to_string();
        // A disk that does not answer is to hold up nobody else.
        let disk = tokio::task::spawn_blocking(move || disk_bytes(&path)).await.ok().flatten();
        let (total_bytes, usable_bytes) = disk.unzip();
        LogDir { path: shown, total_bytes, usable_bytes, tails }
    }
}

/// Size of the disk that a folder is on, and what of it is free for who is not root.
fn disk_bytes(folder: &Path) -> Option<(u64, u64)> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some((disk.f_blocks.saturating_mul(disk.f_frsize), disk.f_bavail.saturating_mul(disk.f_frsize)))
}
