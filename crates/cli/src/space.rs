//! What a mount's space holds, for `buttress stats`.

use buttress_fs::{Account, SpaceStats, SyncStats};
use serde_json::{Value, json};

use crate::live::Figures;

/// What fsync did: inodes, logs, and commits that came instead, by reason.
pub(crate) fn sync_figures(stats: &SyncStats) -> Figures {
    let mut figures = vec![
        ("fsyncs".to_owned(), json!(stats.syncs)),
        ("logs".to_owned(), json!(stats.logs)),
        ("data_with_logs".to_owned(), json!(stats.late)),
        ("log_copies_later".to_owned(), json!(stats.log_copies)),
        ("commits".to_owned(), json!(stats.commits.values().sum::<u64>())),
    ];
    for (why, times) in &stats.commits {
        figures.push((format!("commit_for_{}", why.replace([' ', '-'], "_")), json!(times)));
    }
    figures
}

/// Names and figures, in the order in which a person reads them.
pub(crate) fn figures(stats: &SpaceStats) -> Figures {
    let mut figures = Figures::new();
    let mut add = |name: String, value: Value| figures.push((name, value));
    let accounts = &stats.accounts;
    for account in [&accounts.data, &accounts.metadata, &accounts.system] {
        let Account { kind, total, used, reserved, pinned, read_only, may_use, .. } = account;
        let of = [
            ("total", total),
            ("used", used),
            ("reserved", reserved),
            ("pinned", pinned),
            ("read_only", read_only),
            ("may_use", may_use),
        ];
        for (name, bytes) in of {
            add(format!("{kind}_{name}_bytes"), json!(bytes));
        }
    }
    let (engine, waits) = (&stats.engine, &stats.engine.waits);
    let micros = |share| json!(waits.per_mille(share).as_micros() as u64);
    let rest = [
        ("global_reserve_bytes", json!(accounts.metadata.global_reserve)),
        ("unallocated_bytes", json!(accounts.unallocated)),
        ("chunks", json!(engine.chunks)),
        ("groups_known", json!(engine.groups_known)),
        ("unreserved_bytes", json!(accounts.unreserved)),
        ("dirty_bytes", json!(stats.dirty)),
        ("ordered_bytes", json!(stats.ordered)),
        ("overlay_bytes", json!(engine.overlay_bytes)),
        ("waiting_for_data", json!(accounts.waiting.0)),
        ("waiting_for_metadata", json!(accounts.waiting.1)),
        ("waits", json!(waits.count())),
        ("waits_for_data", json!(engine.data_waits.count())),
        ("wait_p50_us", micros(500)),
        ("wait_p999_us", micros(999)),
        ("wait_max_us", json!(waits.nanos_max / 1000)),
        ("refused", json!(engine.enospc)),
        ("interrupted", json!(engine.interrupted)),
        ("preempt", json!(format!("{:?}", stats.preempt).to_lowercase())),
        ("ladders", json!(stats.ladders)),
        ("preempt_rounds", json!(stats.rounds)),
        ("preempt_rounds_dirty", json!(stats.rounds_dirty)),
        ("preempt_rounds_commit", json!(stats.rounds_commit)),
        ("preempt_forecast_bytes", json!(stats.round_forecast)),
        ("preempt_yield_bytes", json!(stats.round_yield)),
        ("clamp", json!(stats.clamp)),
        ("delay_us", json!(stats.delay.as_micros() as u64)),
        ("flushed_bytes", json!(stats.flushed)),
        ("short_landings", json!(stats.short_landings)),
        ("drain_rate_bytes", json!(stats.drain_rate)),
        ("commits", json!(engine.commits)),
        ("commit_us", json!(engine.commit_nanos / 1000)),
    ];
    for (name, value) in rest {
        add(name.to_owned(), value);
    }
    figures
}
