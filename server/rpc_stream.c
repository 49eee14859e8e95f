/* rpc_stream */
typedef int fired_rpc_stream_is_not_written_yet;
