//! Carries orders out on a volume that this process has open.
//!
//! # Invariants
//!
//! - **E1** An order does the same in a verb that opened the volume and in a mount that has it
//!   open. Both call [`carry_out`].
//! - **E2** An order that reads or relocates the whole volume begins with a commit. The commit has
//!   everything that programs have written so far, also data that the kernel still has in its
//!   cache. Once a commit has failed, such an order reads the last good commit, and
//!   [`Order::Commit`] fails.

mod balance;
mod defragment;
mod device;
mod fstrim;
mod property;
mod quota;
mod resize;
mod room;
mod scrub;
mod stream;
mod subvolume;
mod survey;
mod swap;
mod verity;

use buttress_fs::{BalanceProgress, Filesystem, ScrubOptions, Stopped};
use buttress_fuse::KernelSync;
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Access;
use crate::order::{Order, PropertyAct, QuotaAct, Step, VerityAct, Watch};
use crate::target::{Open, Stream};

pub use balance::{options as balance_options, status_of as balance_status};
pub use buttress_fs::DeviceCounts as ScrubCounts;
pub use defragment::Done as Defragmented;
pub use device::{Row as DeviceRow, expect_empty, fresh as fresh_device, holds};
pub use room::Room;
pub use scrub::{
    OnDevice as ScrubOnDevice, Status as ScrubStatus, read as read_scrub,
    state_file as scrub_state_file,
};
pub use swap::{PAGE as SWAP_PAGE, SIZE_MIN as SWAP_SIZE_MIN};
pub use verity::digest_of_host;

/// Carries an order out.
///
/// # Errors
///
/// An error of the volume, or an order that lacks the stream that it needs.
pub fn carry_out(
    order: &Order,
    open: &Open<'_>,
    stream: Stream<'_>,
    watch: Watch<'_>,
) -> Result<Value> {
    let Open { fs, name, kernel_sync } = *open;
    match (order, stream) {
        (Order::Send(sending), Stream::Out(output)) => {
            begin(order, fs, kernel_sync).context(|| name)??;
            return stream::send(fs, sending, output, watch);
        }
        (Order::Receive { dir, max_errors }, Stream::In(input)) => {
            return stream::receive(fs, (dir, *max_errors), kernel_sync, input, watch);
        }
        _ => {}
    }
    if order.begins_with_commit() {
        begin(order, fs, kernel_sync).context(|| name)??;
    }
    let mut moving = |progress: &BalanceProgress| watch(&moved(progress));
    match order {
        Order::BalanceStart { data, metadata, system, force } => {
            let options = balance::options(data, metadata, system)?;
            if !force {
                balance::refuse_fewer_copies(fs, &options).context(|| name)??;
            }
            Ok(balance::document(&fs.balance(&options, &mut moving).context(|| name)?))
        }
        Order::BalanceResume => {
            Ok(balance::document(&fs.resume_balance(&mut moving).context(|| name)?))
        }
        Order::BalancePause => {
            fs.pause_balance().context(|| name)?;
            Ok(Value::Null)
        }
        Order::BalanceCancel => {
            fs.cancel_balance().context(|| name)?;
            Ok(Value::Null)
        }
        Order::BalanceStatus => balance::status_of(fs, false).context(|| name),
        Order::Commit => Ok(Value::Null),
        Order::Defragment { at, how } => defragment::carry_out(fs, at, how, watch),
        Order::DeviceAdd { new, force, discard } => device::add(fs, new, *force, *discard),
        Order::DeviceRemove { called } => {
            let id = device::find(fs, called, name)?;
            fs.remove_device(id, &mut moving).context(|| name)?;
            Ok(json!({ "devid": id.0 }))
        }
        Order::DeviceReplace { called, new, force } => {
            let new = device::next_for(fs, new, *force)?;
            let id = device::find(fs, called, name)?;
            let found = fs.replace_device(id, new, &mut moving).context(|| name)?;
            let lost = found.uncorrectable_errors;
            Ok(json!({ "devid": id.0, "uncorrectable_errors": lost }))
        }
        Order::DeviceRemoveCancel => Ok(cancelled(fs.cancel_removal())),
        Order::ResizeCancel => Ok(cancelled(fs.cancel_resize())),
        Order::ScrubCancel => Ok(json!({ "canceled": fs.cancel_scrubs() })),
        Order::ReplaceCancel => Ok(json!({ "canceled": fs.cancel_replace().context(|| name)? })),
        Order::ReplaceStatus => device::replacement(fs).context(|| name),
        Order::DeviceStats { reset } => device::stats_of(fs, *reset, name),
        Order::Fstrim { offset, length, minimum } => {
            let options = fstrim::options(*offset, *length, *minimum);
            fstrim::carry_out(fs, options, name, watch)
        }
        Order::Label { label } => {
            fs.set_label(label).context(|| name)?;
            Ok(Value::Null)
        }
        Order::Remount { read_only } => {
            if let Some(kernel_sync) = kernel_sync.filter(|_| *read_only) {
                kernel_sync.write_back().context(|| name)?;
            }
            fs.set_read_only(*read_only).context(|| name)?;
            Ok(Value::Null)
        }
        Order::Room => room::document(fs).context(|| name)?,
        Order::Resize { size } => resize::carry_out(fs, size, name, &mut moving),
        Order::Scrub { resume, read_only, hold_groups, state } => {
            let how = ScrubOptions {
                read_only: *read_only,
                hold_groups: *hold_groups,
                ..ScrubOptions::default()
            };
            scrub::carry_out(fs, how, (*resume, state.as_deref()), name, watch)
        }
        Order::ScrubStatus { state } => scrub::status_of(fs, state.as_deref(), name),
        Order::Property { at, act } => property::carry_out(fs, at, act, kernel_sync),
        Order::Verity { at, act } => verity::carry_out(fs, at, act, kernel_sync),
        Order::Quota(act) => quota::carry_out(fs, act, name, watch),
        Order::Receive { .. } | Order::Send(_) => {
            Err(Failure::new(Exit::Usage, "the stream is missing"))
        }
        Order::Subvolume(act) => act.carry_out(fs, kernel_sync, watch),
        Order::SwapFile { at, uid, gid, size, uuid } => {
            swap::make(fs, (at, *uid, *gid), (*size, uuid), kernel_sync)
        }
        Order::Survey { at, request } => survey::carry_out(fs, at, request, watch),
    }
}

/// Commits everything that programs have written, before an order (E2).
fn begin(
    order: &Order,
    fs: &Filesystem,
    kernel_sync: Option<&KernelSync>,
) -> std::io::Result<Result<()>> {
    if let Some(kernel_sync) = kernel_sync.filter(|_| fs.read_only_reason().is_none()) {
        kernel_sync.write_back()?;
    }
    let is_commit = matches!(order, Order::Commit);
    let done = if is_commit { fs.commit() } else { fs.commit_or_keep_last() };
    Ok(done.context(|| "a commit"))
}

/// The access to the volume that an order needs.
pub fn access(order: &Order) -> Access {
    match order {
        Order::BalanceStatus
        | Order::DeviceRemoveCancel
        | Order::ReplaceStatus
        | Order::ResizeCancel
        | Order::ScrubCancel
        | Order::ScrubStatus { .. } => Access::Peek,
        Order::Commit
        | Order::DeviceStats { reset: false }
        | Order::Property { act: PropertyAct::Get { .. } | PropertyAct::List, .. }
        | Order::Room
        | Order::Send(_)
        | Order::Scrub { read_only: true, .. }
        | Order::Verity { act: VerityAct::Measure | VerityAct::Digest { .. }, .. }
        | Order::Survey { .. } => Access::Read,
        Order::Subvolume(act) => act.access(),
        Order::Quota(QuotaAct::Show | QuotaAct::ShowAt { .. }) => Access::Read,
        _ => Access::Write,
    }
}

/// The answer to a request to cancel work on devices.
fn cancelled(found: Stopped) -> Value {
    json!({ "canceled": found == Stopped::Work, "other_work": found == Stopped::OtherWork })
}

/// The progress of a balance.
fn moved(progress: &BalanceProgress) -> Step {
    Step {
        done: progress.moved,
        total: progress.bytes,
        text: format!("{} of {} chunks", progress.completed, progress.expected),
    }
}
