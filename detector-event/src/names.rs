//! The fixed names that enums have in events (`duplicate`, `certain`, `device_removed` …), and serde helpers that write
//! and read them. The engine's own types keep their derived form for `--state-dir`; events use these names.

use std::fmt;

use detector_engine::{
    AnomalyCause, AnomalyKind, Confidence, ConflictKind, ConflictScope, EvidenceKind, Ipam,
    LeaveReason, ResolveReason,
    diagnosis::{Cause, CauseConfidence},
};
use serde::{Deserializer, Serializer, de};

use super::Change;

/// An enum whose values have a fixed name in events.
pub trait ContractName: Copy + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// The value's name.
    fn contract_name(self) -> &'static str;

    /// The value with this name.
    #[must_use]
    fn from_contract_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|value| value.contract_name() == name)
    }
}

/// The names of types that have `ALL` and `name()`.
macro_rules! contract_names {
    ($($type:ident),+) => {$(
        impl ContractName for $type {
            const ALL: &'static [Self] = &$type::ALL;

            fn contract_name(self) -> &'static str {
                self.name()
            }
        }
    )+};
}

contract_names!(
    AnomalyCause,
    AnomalyKind,
    Cause,
    CauseConfidence,
    Change,
    Confidence,
    ConflictKind,
    ConflictScope,
    EvidenceKind,
    Ipam,
    LeaveReason,
    ResolveReason
);

struct NameVisitor<T>(std::marker::PhantomData<T>);

impl<T: ContractName> de::Visitor<'_> for NameVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = T::ALL.iter().map(|value| value.contract_name()).collect();
        write!(f, "one of {}", names.join(", "))
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<T, E> {
        T::from_contract_name(name)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
    }
}

/// `#[serde(with = "name")]` for a [`ContractName`].
pub mod name {
    use std::any::type_name;

    use super::*;

    /// For serde.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: ContractName, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        // As a derived enum does.
        serializer.serialize_unit_variant(type_name::<T>(), 0, value.contract_name())
    }

    /// For serde.
    ///
    /// # Errors
    /// It is something else.
    pub fn deserialize<'de, T: ContractName, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        deserializer.deserialize_str(NameVisitor(std::marker::PhantomData))
    }
}

/// `#[serde(default, with = "optional_name")]` for an optional [`ContractName`].
pub mod optional_name {
    use serde::Deserialize;

    use super::*;

    /// For serde.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: ContractName, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(value.contract_name()),
            None => serializer.serialize_none(),
        }
    }

    /// For serde.
    ///
    /// # Errors
    /// It is something else.
    pub fn deserialize<'de, T: ContractName, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        struct Named<T>(T);

        impl<'de, T: ContractName> Deserialize<'de> for Named<T> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                name::deserialize(deserializer).map(Self)
            }
        }

        Ok(Option::<Named<T>>::deserialize(deserializer)?.map(|named| named.0))
    }
}

/// `#[serde(with = "list")]` for a list of a [`ContractName`].
pub mod list {
    use serde::Deserialize as _;

    use super::*;

    /// For serde.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: ContractName, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| value.contract_name()))
    }

    /// For serde.
    ///
    /// # Errors
    /// It is something else.
    pub fn deserialize<'de, T: ContractName, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let named = Vec::<String>::deserialize(deserializer)?;
        let value = |name: String| {
            let value = T::from_contract_name(&name);
            value.ok_or_else(|| de::Error::custom(format_args!("unknown name `{name}`")))
        };
        named.into_iter().map(value).collect()
    }
}

/// `#[serde(default, with = "optional_mac")]` for an optional MAC address, `aa:bb:cc:dd:ee:ff`.
pub mod optional_mac {
    use std::borrow::Cow;

    use detector_engine::{Mac, serialize_ascii};
    use serde::Deserialize;

    use super::*;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    /// For serde.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(mac: &Option<Mac>, serializer: S) -> Result<S::Ok, S::Error> {
        match mac {
            Some(mac) => serialize_ascii(&mac.text(), serializer),
            None => serializer.serialize_none(),
        }
    }

    /// For serde.
    ///
    /// # Errors
    /// It is something else.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Mac>, D::Error> {
        let text = Option::<Cow<'de, str>>::deserialize(deserializer)?;
        let parse = |text: Cow<'_, str>| {
            let unexpected = de::Unexpected::Str(&text);
            let error = || de::Error::invalid_value(unexpected, &"a MAC address");
            text.parse().map_err(|_| error())
        };
        text.map(parse).transpose()
    }
}

/// `#[serde(default, with = "optional_seconds")]` for an optional time span in seconds, with a fraction.
pub mod optional_seconds {
    use std::time::Duration;

    use serde::Deserialize;

    use super::*;

    /// For serde.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => serializer.serialize_f64(span.as_secs_f64()),
            None => serializer.serialize_none(),
        }
    }

    /// For serde.
    ///
    /// # Errors
    /// It is something else.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        seconds
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn check<T: ContractName + PartialEq + fmt::Debug>() {
        let names: HashSet<_> = T::ALL.iter().map(|value| value.contract_name()).collect();
        assert_eq!(names.len(), T::ALL.len(), "{names:?}");
        for value in T::ALL {
            assert_eq!(T::from_contract_name(value.contract_name()), Some(*value));
        }
        assert_eq!(T::from_contract_name(""), None);
    }

    #[test]
    fn every_name_is_unique_and_read_back() {
        check::<ConflictKind>();
        check::<ConflictScope>();
        check::<Confidence>();
        check::<Change>();
        check::<EvidenceKind>();
        check::<LeaveReason>();
        check::<AnomalyKind>();
        check::<AnomalyCause>();
        check::<ResolveReason>();
        check::<Ipam>();
        check::<super::super::EventType>();
        check::<super::super::ResolvedBecause>();
        check::<super::super::SubjectKind>();
    }
}
