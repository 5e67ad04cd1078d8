//! Error numbers, as Linux has them on all supported machines.

/// An error for a program: a positive POSIX error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! numbers {
    ($($name:ident = $number:literal, $meaning:literal;)*) => {
        impl Errno {
            $(#[doc = $meaning] pub const $name: Self = Self($number);)*
        }
    };
}

numbers! {
    EPERM = 1, "Not permitted.";
    ENOENT = 2, "There is no such name.";
    EINTR = 4, "A signal came.";
    EIO = 5, "A device failed, or its data is damaged.";
    ENXIO = 6, "There is no such range.";
    EACCES = 13, "The user may not do that.";
    EBUSY = 16, "It is in use.";
    EEXIST = 17, "The name is there already.";
    EXDEV = 18, "The two are on different volumes.";
    ENODEV = 19, "There is no such device.";
    ENOTDIR = 20, "It is no directory.";
    EISDIR = 21, "It is a directory.";
    EINVAL = 22, "The request makes no sense.";
    ENOTTY = 25, "There is no such command.";
    ETXTBSY = 26, "The file is open for writing.";
    EFBIG = 27, "The file would be too large.";
    ENOSPC = 28, "The volume is full.";
    EROFS = 30, "The volume is read-only.";
    EMLINK = 31, "The file has too many names.";
    ERANGE = 34, "The value does not fit into the room.";
    ENAMETOOLONG = 36, "The name is too long.";
    ENOSYS = 38, "The server has no such request.";
    ENOTEMPTY = 39, "The directory has names in it.";
    ENODATA = 61, "There is no such attribute.";
    ENOPKG = 65, "There is no such hash function.";
    EPROTO = 71, "The versions of the protocol do not fit.";
    EOVERFLOW = 75, "The number does not fit.";
    EMSGSIZE = 90, "The argument is too long.";
    EOPNOTSUPP = 95, "The server cannot do that.";
    ESTALE = 116, "The inode is gone.";
    EDQUOT = 122, "A quota is used up.";
}

impl Errno {
    /// The error with this number; a number outside the valid range becomes [`Errno::EIO`].
    #[must_use]
    pub fn from_i32(number: i32) -> Self {
        // The kernel accepts no larger error number.
        if (1..512).contains(&number) { Self(number) } else { Self::EIO }
    }

    /// The number.
    #[must_use]
    pub fn code(self) -> i32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_numbers_that_the_kernel_takes() {
        assert_eq!(Errno::from_i32(28), Errno::ENOSPC);
        for wrong in [0, -5, 512, i32::MIN] {
            assert_eq!(Errno::from_i32(wrong), Errno::EIO);
        }
    }
}
