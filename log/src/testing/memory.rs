//! An allocator that counts, so that a property can say how much memory a decoder takes.
//!
//! Counts the calling thread only. Says nothing unless the binary made `Meter` its global allocator.

#![allow(unsafe_code, reason = "an allocator is unsafe by its trait; this one only counts what it passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counted. To be the `#[global_allocator]` of a test binary or a fuzz target.
pub struct Meter;

fn add(bytes: usize) {
    let live = LIVE.get().wrapping_add(bytes);
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

/// What another thread allocated may be freed here, so the count may pass below zero: it wraps, and differences stay right.
fn remove(bytes: usize) {
    LIVE.set(LIVE.get().wrapping_sub(bytes));
}

// SAFETY: each method passes its arguments on to `System` and returns what that returns.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new exist at once where the block moves.
        add(size);
        remove(layout.size());
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        remove(layout.size());
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Most bytes that `act` held at one moment beyond those held before it.
pub fn peak<T>(act: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    // Counted from the middle of the range, so that frees of older memory do not wrap the peak.
    LIVE.set(usize::MAX / 2);
    PEAK.set(usize::MAX / 2);
    let done = act();
    let grown = PEAK.get() - usize::MAX / 2;
    LIVE.set(before.wrapping_add(LIVE.get().wrapping_sub(usize::MAX / 2)));
    (done, grown)
}

/// Runs `act` and asserts that it never holds more than `bytes_max` beyond what was held before. Does not nest.
pub fn within<T>(bytes_max: usize, act: impl FnOnce() -> T) -> T {
    let (done, grown) = peak(act);
    assert!(grown <= bytes_max, "{grown} bytes were allocated, at most {bytes_max} may be");
    done
}

/// Whether this binary counts.
#[must_use]
pub fn is_metered() -> bool {
    peak(|| std::hint::black_box(Vec::<u8>::with_capacity(4096))).1 >= 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_those_of_the_act() {
        let kept = vec![1u8; 1000];
        let (_, grown) = peak(move || {
            drop(vec![0u8; 5000]);
            drop(kept);
            vec![0u8; 3000]
        });
        assert_eq!(grown, 5000);
        assert!(std::panic::catch_unwind(|| within(10, || vec![0u8; 11])).is_err());
        assert_eq!(within(11, || vec![0u8; 11]).len(), 11);
    }
}
