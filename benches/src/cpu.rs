//! Processor time of the whole machine, because the kernel's work for a file system belongs to no
//! process.

use std::fs;

/// Seconds that all processors were busy since the machine began; zero if that is unknown.
pub(crate) fn busy() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq
    let sum: f64 = [0, 1, 2, 5, 6].iter().filter_map(|&at| ticks.get(at)).sum();
    sum / 100.0
}
