//! Attributes as statx(2) asks for them: the attributes of `getattr`, and the time of birth.

use buttress_protocol::{StatxOut, StatxTime};

use super::FrontEnd;
use crate::attr::device_parts;
use crate::errno::Answer;

impl FrontEnd {
    /// Answers `statx`. As with `getattr`, only reads and writes of an open file ask with a handle.
    pub(crate) fn statx(&self, id: u64, has_handle: bool) -> Answer<StatxOut> {
        let attr = self.getattr(id, has_handle)?;
        let birth = self.node(id)?.inode.attr().otime;
        let birth = StatxTime::new(birth.sec, birth.nsec);
        Ok(StatxOut::new(self.valid_secs(), &attr, birth, device_parts(attr.rdev)))
    }
}
