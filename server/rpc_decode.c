/* rpc_decode */
typedef int fired_rpc_decode_is_not_written_yet;
