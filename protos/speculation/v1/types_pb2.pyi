from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Q_FORM_UNSPECIFIED: _ClassVar[QForm]
    Q_FORM_COUPLED: _ClassVar[QForm]
    Q_FORM_ONE_HOT: _ClassVar[QForm]
    Q_FORM_SPARSE: _ClassVar[QForm]
    Q_FORM_DENSE: _ClassVar[QForm]

class FirstPosition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIRST_POSITION_UNSPECIFIED: _ClassVar[FirstPosition]
    FIRST_POSITION_AFTER_COMMITTED: _ClassVar[FirstPosition]
    FIRST_POSITION_AFTER_BONUS: _ClassVar[FirstPosition]

class FeatureType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEATURE_TYPE_UNSPECIFIED: _ClassVar[FeatureType]
    FEATURE_TYPE_HIDDEN_STATES: _ClassVar[FeatureType]

class RejectionRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECTION_RULE_UNSPECIFIED: _ClassVar[RejectionRule]
    REJECTION_RULE_COUPLED: _ClassVar[RejectionRule]
    REJECTION_RULE_STANDARD: _ClassVar[RejectionRule]
    REJECTION_RULE_BLOCK: _ClassVar[RejectionRule]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
Q_FORM_UNSPECIFIED: QForm
Q_FORM_COUPLED: QForm
Q_FORM_ONE_HOT: QForm
Q_FORM_SPARSE: QForm
Q_FORM_DENSE: QForm
FIRST_POSITION_UNSPECIFIED: FirstPosition
FIRST_POSITION_AFTER_COMMITTED: FirstPosition
FIRST_POSITION_AFTER_BONUS: FirstPosition
FEATURE_TYPE_UNSPECIFIED: FeatureType
FEATURE_TYPE_HIDDEN_STATES: FeatureType
REJECTION_RULE_UNSPECIFIED: RejectionRule
REJECTION_RULE_COUPLED: RejectionRule
REJECTION_RULE_STANDARD: RejectionRule
REJECTION_RULE_BLOCK: RejectionRule
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason

class DraftSampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class SparseDistribution(_message.Message):
    __slots__ = ("row_lengths", "token_ids", "masses")
    ROW_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MASSES_FIELD_NUMBER: _ClassVar[int]
    row_lengths: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    masses: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, row_lengths: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., masses: _Optional[_Iterable[int]] = ...) -> None: ...

class Features(_message.Message):
    __slots__ = ("type", "positions", "layer_ids", "hidden_size", "values_bf16_le")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    LAYER_IDS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    VALUES_BF16_LE_FIELD_NUMBER: _ClassVar[int]
    type: FeatureType
    positions: _containers.RepeatedScalarFieldContainer[int]
    layer_ids: _containers.RepeatedScalarFieldContainer[int]
    hidden_size: int
    values_bf16_le: bytes
    def __init__(self, type: _Optional[_Union[FeatureType, str]] = ..., positions: _Optional[_Iterable[int]] = ..., layer_ids: _Optional[_Iterable[int]] = ..., hidden_size: _Optional[int] = ..., values_bf16_le: _Optional[bytes] = ...) -> None: ...

class AcceptanceStats(_message.Message):
    __slots__ = ("num_spec_tokens", "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram", "accepted_per_position", "proposed_per_position", "per_step_accepted", "per_step_drafted")
    NUM_SPEC_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SPEC_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    PER_STEP_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PER_STEP_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    num_spec_tokens: int
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    acceptance_histogram: _containers.RepeatedScalarFieldContainer[int]
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    proposed_per_position: _containers.RepeatedScalarFieldContainer[int]
    per_step_accepted: _containers.RepeatedScalarFieldContainer[int]
    per_step_drafted: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, num_spec_tokens: _Optional[int] = ..., num_spec_steps: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_draft_tokens: _Optional[int] = ..., acceptance_histogram: _Optional[_Iterable[int]] = ..., accepted_per_position: _Optional[_Iterable[int]] = ..., proposed_per_position: _Optional[_Iterable[int]] = ..., per_step_accepted: _Optional[_Iterable[int]] = ..., per_step_drafted: _Optional[_Iterable[int]] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("upper_bounds", "counts", "sum")
    UPPER_BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    upper_bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, upper_bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...
