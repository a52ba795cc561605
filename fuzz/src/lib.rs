//! What every fuzz target has in common: memory is counted, and the target is one property of a crate's `properties`.

use millpond_log::testing::memory::Meter;

#[global_allocator]
static METER: Meter = Meter;

/// Makes a target of a property.
#[macro_export]
macro_rules! target {
    ($property:path) => {
        libfuzzer_sys::fuzz_target!(|input: &[u8]| {
            $property(input);
        });
    };
}
