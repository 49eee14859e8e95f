/* rpc_encode */
typedef int fired_rpc_encode_is_not_written_yet;
