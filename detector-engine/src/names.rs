//! Enums whose values have a fixed name: one list of the values, from which both follow.

/// Defines an enum with a name for each of its values.
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $type:ident {
        $($(#[$of_value:meta])* $value:ident = $name:literal,)+
    }) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[$of_value])* $value,)+
        }

        impl $type {
            /// Every value.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The name used in events and metrics (`docs/events.md`), or in the log.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }
    };
}

pub(crate) use named;
