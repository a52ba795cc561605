//! Medians of several rounds, and how far the rounds are apart. Measures nothing.

/// The value that as many values are below as above; of an even number of values, the upper of the two in the middle.
///
/// # Panics
/// If there are no values, or one is not a number.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(|a, b| a.partial_cmp(b).expect("a measured value is a number"));
    values[values.len() / 2]
}

/// The least and the greatest ratio of two measures that were taken in turns.
pub(crate) fn ratios(ours: &[f64], bare: &[f64]) -> (f64, f64) {
    let each = ours.iter().zip(bare).map(|(ours, bare)| ours / bare);
    each.fold((f64::INFINITY, 0.0), |(least, most), ratio| (least.min(ratio), most.max(ratio)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 3.0);
        assert_eq!(median(&[7.0]), 7.0);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        assert_eq!(ratios(&[2.0, 3.0], &[4.0, 1.0]), (0.5, 3.0));
    }
}
