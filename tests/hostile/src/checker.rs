//! The checker on volumes made to do harm. It gives a report for any content.

use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_check::{NoProgress, Options, check_devices, repair};

use crate::image::Image;
use crate::mutate;
use crate::steps::Steps;

/// More requests to the device than any of these volumes takes.
const REQUESTS_MAX: u64 = 400_000;

/// One of several volumes is damaged as the bytes say, checked, and repaired if possible. After a
/// report that everything was repaired, the volume is clean.
///
/// # Panics
///
/// If there is a bug.
pub fn checker(bases: &[Image], data: &[u8]) {
    let choice = data.first().copied().unwrap_or_default();
    let base = &bases[usize::from(choice >> 3) % bases.len()];
    let device = mutate::damaged(base, data.get(1..).unwrap_or_default());
    // Little memory makes the checker sort on disk.
    let memory_bytes = if choice & 1 == 0 { 64 << 20 } else { 1 << 10 };
    let threads = if choice & 4 == 0 { 1 } else { 2 };
    let options =
        Options { check_data_csum: choice & 2 == 0, memory_bytes, threads: Some(threads) };
    let devices: Vec<Arc<dyn Device>> = vec![limited(device)];
    let Ok(report) = check_devices(devices.clone(), &options, &NoProgress) else { return };
    assert_eq!(report.is_clean(), report.errors() == 0);
    assert!(report.is_clean() || !report.to_text().is_empty(), "what is wrong has a name");
    let Ok(repairs) = repair(&devices, &report) else { return };
    if repairs.left.is_empty() && !report.is_clean() {
        let again = check_devices(devices, &options, &NoProgress).expect("it could be read before");
        assert!(again.is_clean(), "{repairs:?}\n{}\n{}", report.to_text(), again.to_text());
    }
}

fn limited(device: MemoryDevice) -> Arc<dyn Device> {
    Arc::new(Steps::new(Arc::new(device), REQUESTS_MAX))
}
