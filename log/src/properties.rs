//! What must hold whatever bytes come from outside: one property for each of the formats, asserted on any input.
//!
//! For the fuzz targets, and for `testing::replay` in ordinary tests. A
//! property says whether the input was taken for what it claims to be; nothing here is part of the product.

mod batches;
mod codecs;
mod frames;
mod manifests;
mod names;
mod producers;

pub use crate::segment::properties::{bundle, bundle_seeds, segment, segment_seeds};
pub use batches::{batch, batch_seeds};
pub use codecs::{codec, codec_seeds};
pub use frames::{frame, frame_seeds};
pub use manifests::{manifest, manifest_seeds};
pub use names::{epochs, epochs_seeds, object_key, object_key_seeds};
pub use producers::{producers, producers_seeds};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check;
    use crate::testing::memory::Meter;

    #[global_allocator]
    static METER: Meter = Meter;

    #[test]
    fn batches_hold() {
        check("batch", &batch_seeds(), batch);
    }

    #[test]
    fn codecs_hold() {
        check("codec", &codec_seeds(), codec);
    }

    #[test]
    fn frames_hold() {
        check("frame", &frame_seeds(), frame);
    }

    #[test]
    fn segments_hold() {
        check("segment", &segment_seeds(), segment);
    }

    #[test]
    fn bundles_hold() {
        check("bundle", &bundle_seeds(), bundle);
    }

    #[test]
    fn manifests_hold() {
        check("manifest", &manifest_seeds(), manifest);
    }

    #[test]
    fn producer_snapshots_hold() {
        check("producers", &producers_seeds(), producers);
    }

    #[test]
    fn object_keys_hold() {
        check("object_key", &object_key_seeds(), object_key);
    }

    #[test]
    fn epochs_hold() {
        check("epochs", &epochs_seeds(), epochs);
    }
}
