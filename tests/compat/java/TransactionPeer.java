import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer of transactions by the official client: NAMESERVER TOPIC GROUP BODIES CHECKED. The first letter of a body
 * is the local transaction's state, the second the answer to checks: c commit, r roll back, u unknown. Lives until
 * these bodies were checked, a minute at most.
 */
public class TransactionPeer {
    public static void main(String[] args) throws Exception {
        Set<String> left = ConcurrentHashMap.newKeySet();
        for (String body : split(args[4])) left.add(body);
        TransactionMQProducer producer = new TransactionMQProducer(args[2], Peer.credentials());
        producer.setNamesrvAddr(args[0]);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state(new String(message.getBody(), StandardCharsets.UTF_8).charAt(0));
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                String times = message.getProperty(MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES);
                left.remove(body);
                System.out.println(String.join("\t", "CHECKED", body, times, message.getTopic(), message.getTransactionId()));
                return state(body.charAt(1));
            }
        });
        producer.start();
        for (String body : split(args[3])) {
            Message message = new Message(args[1], "T", body, body.getBytes(StandardCharsets.UTF_8));
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            System.out.println(String.join("\t", "SENT", body, result.getSendStatus().toString(),
                result.getLocalTransactionState().toString(), result.getTransactionId()));
        }
        long end = System.currentTimeMillis() + 60_000;
        while (!left.isEmpty() && System.currentTimeMillis() < end) Thread.sleep(20);
        Thread.sleep(500); // the answers are sent one-way
        producer.shutdown();
        System.exit(0);
    }

    static String[] split(String list) {
        return list.isEmpty() ? new String[0] : list.split(",");
    }

    static LocalTransactionState state(char letter) {
        switch (letter) {
            case 'c': return LocalTransactionState.COMMIT_MESSAGE;
            case 'r': return LocalTransactionState.ROLLBACK_MESSAGE;
            default: return LocalTransactionState.UNKNOW;
        }
    }
}
