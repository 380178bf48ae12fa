from speculation.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("capabilities", "open_streams", "open_sequences")
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    OPEN_STREAMS_FIELD_NUMBER: _ClassVar[int]
    OPEN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    capabilities: Capabilities
    open_streams: int
    open_sequences: int
    def __init__(self, capabilities: _Optional[_Union[Capabilities, _Mapping]] = ..., open_streams: _Optional[int] = ..., open_sequences: _Optional[int] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("protocol_version", "instance_id", "name", "method", "vocabulary_fingerprint", "vocabulary_size", "max_sequences", "max_draft_tokens", "context_limit", "q_forms", "required_features", "feature_layer_ids", "first_position", "lookahead", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    Q_FORMS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LAYER_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    instance_id: str
    name: str
    method: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    max_sequences: int
    max_draft_tokens: int
    context_limit: int
    q_forms: _containers.RepeatedScalarFieldContainer[_types_pb2.QForm]
    required_features: _containers.RepeatedScalarFieldContainer[_types_pb2.FeatureType]
    feature_layer_ids: _containers.RepeatedScalarFieldContainer[int]
    first_position: _types_pb2.FirstPosition
    lookahead: bool
    options: _containers.ScalarMap[str, str]
    def __init__(self, protocol_version: _Optional[int] = ..., instance_id: _Optional[str] = ..., name: _Optional[str] = ..., method: _Optional[str] = ..., vocabulary_fingerprint: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., context_limit: _Optional[int] = ..., q_forms: _Optional[_Iterable[_Union[_types_pb2.QForm, str]]] = ..., required_features: _Optional[_Iterable[_Union[_types_pb2.FeatureType, str]]] = ..., feature_layer_ids: _Optional[_Iterable[int]] = ..., first_position: _Optional[_Union[_types_pb2.FirstPosition, str]] = ..., lookahead: _Optional[bool] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("hello", "step")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step: Step
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ...) -> None: ...

class ProposeResponse(_message.Message):
    __slots__ = ("welcome", "drafts", "lookahead")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    drafts: Drafts
    lookahead: Lookahead
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., drafts: _Optional[_Union[Drafts, _Mapping]] = ..., lookahead: _Optional[_Union[Lookahead, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "verifier_instance_id", "vocabulary_fingerprint", "vocabulary_size", "eos_token_ids", "max_sequences", "max_draft_tokens", "context_limit", "accepted_q_forms", "offered_features", "first_position", "no_lookahead", "rejection_rule", "device_uuid")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_Q_FORMS_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    NO_LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    REJECTION_RULE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    verifier_instance_id: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_sequences: int
    max_draft_tokens: int
    context_limit: int
    accepted_q_forms: _containers.RepeatedScalarFieldContainer[_types_pb2.QForm]
    offered_features: _containers.RepeatedScalarFieldContainer[_types_pb2.FeatureType]
    first_position: _types_pb2.FirstPosition
    no_lookahead: bool
    rejection_rule: _types_pb2.RejectionRule
    device_uuid: str
    def __init__(self, protocol_version: _Optional[int] = ..., verifier_instance_id: _Optional[str] = ..., vocabulary_fingerprint: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., max_sequences: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., context_limit: _Optional[int] = ..., accepted_q_forms: _Optional[_Iterable[_Union[_types_pb2.QForm, str]]] = ..., offered_features: _Optional[_Iterable[_Union[_types_pb2.FeatureType, str]]] = ..., first_position: _Optional[_Union[_types_pb2.FirstPosition, str]] = ..., no_lookahead: _Optional[bool] = ..., rejection_rule: _Optional[_Union[_types_pb2.RejectionRule, str]] = ..., device_uuid: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("capabilities",)
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    capabilities: Capabilities
    def __init__(self, capabilities: _Optional[_Union[Capabilities, _Mapping]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("step_id", "updates", "closes")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    updates: _containers.RepeatedCompositeFieldContainer[SequenceUpdate]
    closes: _containers.RepeatedCompositeFieldContainer[SequenceClose]
    def __init__(self, step_id: _Optional[int] = ..., updates: _Optional[_Iterable[_Union[SequenceUpdate, _Mapping]]] = ..., closes: _Optional[_Iterable[_Union[SequenceClose, _Mapping]]] = ...) -> None: ...

class SequenceUpdate(_message.Message):
    __slots__ = ("sequence_id", "epoch", "open", "commit", "max_draft_tokens")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    open: SequenceOpen
    commit: SequenceCommit
    max_draft_tokens: int
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., open: _Optional[_Union[SequenceOpen, _Mapping]] = ..., commit: _Optional[_Union[SequenceCommit, _Mapping]] = ..., max_draft_tokens: _Optional[int] = ...) -> None: ...

class SequenceOpen(_message.Message):
    __slots__ = ("offset", "token_ids", "prompt_length", "more", "sampling", "cache_salt", "traceparent")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_length: int
    more: bool
    sampling: _types_pb2.DraftSampling
    cache_salt: str
    traceparent: str
    def __init__(self, offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_length: _Optional[int] = ..., more: _Optional[bool] = ..., sampling: _Optional[_Union[_types_pb2.DraftSampling, _Mapping]] = ..., cache_salt: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class SequenceCommit(_message.Message):
    __slots__ = ("base_length", "token_ids", "proposer", "drafted", "accepted", "features")
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    base_length: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    proposer: str
    drafted: int
    accepted: int
    features: _types_pb2.Features
    def __init__(self, base_length: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., proposer: _Optional[str] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., features: _Optional[_Union[_types_pb2.Features, _Mapping]] = ...) -> None: ...

class SequenceClose(_message.Message):
    __slots__ = ("sequence_id", "finished")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    finished: bool
    def __init__(self, sequence_id: _Optional[int] = ..., finished: _Optional[bool] = ...) -> None: ...

class Drafts(_message.Message):
    __slots__ = ("step_id", "blocks", "faults", "elapsed_ns")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_NS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    blocks: _containers.RepeatedCompositeFieldContainer[DraftBlock]
    faults: _containers.RepeatedCompositeFieldContainer[SequenceFault]
    elapsed_ns: int
    def __init__(self, step_id: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[DraftBlock, _Mapping]]] = ..., faults: _Optional[_Iterable[_Union[SequenceFault, _Mapping]]] = ..., elapsed_ns: _Optional[int] = ...) -> None: ...

class DraftBlock(_message.Message):
    __slots__ = ("sequence_id", "epoch", "base_length", "token_ids", "q_form", "q", "parents", "match_length", "confidences", "draft_ns")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    Q_FORM_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    MATCH_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    base_length: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    q_form: _types_pb2.QForm
    q: _types_pb2.SparseDistribution
    parents: _containers.RepeatedScalarFieldContainer[int]
    match_length: int
    confidences: _containers.RepeatedScalarFieldContainer[float]
    draft_ns: int
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., base_length: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., q_form: _Optional[_Union[_types_pb2.QForm, str]] = ..., q: _Optional[_Union[_types_pb2.SparseDistribution, _Mapping]] = ..., parents: _Optional[_Iterable[int]] = ..., match_length: _Optional[int] = ..., confidences: _Optional[_Iterable[float]] = ..., draft_ns: _Optional[int] = ...) -> None: ...

class SequenceFault(_message.Message):
    __slots__ = ("sequence_id", "epoch", "reason")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    reason: str
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Lookahead(_message.Message):
    __slots__ = ("step_id", "blocks", "complete")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    blocks: _containers.RepeatedCompositeFieldContainer[OutcomeBlock]
    complete: _containers.RepeatedCompositeFieldContainer[CompleteOutcomes]
    def __init__(self, step_id: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[OutcomeBlock, _Mapping]]] = ..., complete: _Optional[_Iterable[_Union[CompleteOutcomes, _Mapping]]] = ...) -> None: ...

class CompleteOutcomes(_message.Message):
    __slots__ = ("sequence_id", "epoch", "base_length", "accepted", "token_ids")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    base_length: int
    accepted: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., base_length: _Optional[int] = ..., accepted: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class OutcomeBlock(_message.Message):
    __slots__ = ("base_length", "outcome_token_ids", "block")
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    base_length: int
    outcome_token_ids: _containers.RepeatedScalarFieldContainer[int]
    block: DraftBlock
    def __init__(self, base_length: _Optional[int] = ..., outcome_token_ids: _Optional[_Iterable[int]] = ..., block: _Optional[_Union[DraftBlock, _Mapping]] = ...) -> None: ...
