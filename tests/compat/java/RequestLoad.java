import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Round trips of requests and replies, the official client as requester and replier in one JVM: see CallTimes for what it prints. */
public class RequestLoad {
    static final int BODY = 1024;

    /** Arguments: name server, topic (empty), seconds of warm-up, seconds for each number of threads, these numbers. */
    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(3); // the client's own threads would keep the process alive
        }
        System.exit(0);
    }

    static void run(String[] args) throws Exception {
        double warmUp = Double.parseDouble(args[2]), seconds = Double.parseDouble(args[3]);
        DefaultMQProducer replier = producer("load-repliers", args[0]), requester = producer("load-requesters", args[0]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("load-" + System.currentTimeMillis());
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMax(64); // with the default of 20 the replier would be the limit
        consumer.setConsumeThreadMin(64);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    replier.send(MessageUtil.createReplyMessage(message, message.getBody()));
                } catch (Exception error) {
                    error.printStackTrace(); // the request will tell
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        AtomicLong number = new AtomicLong();
        waitForReplies(() -> ask(requester, args[1], number.incrementAndGet(), 3_000));
        CallTimes.Call call = () -> ask(requester, args[1], number.incrementAndGet(), 20_000);
        for (int i = 4; i < args.length; i++)
            CallTimes.measure("requests", Integer.parseInt(args[i]), i == 4 ? warmUp : Math.min(warmUp, 1), seconds, call);
    }

    static DefaultMQProducer producer(String group, String nameServer) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServer);
        producer.start();
        return producer;
    }

    /** A push consumer needs a moment, sometimes half a minute, until it has its queues. */
    static void waitForReplies(CallTimes.Call call) throws Exception {
        for (int i = 0; i < 20; i++) {
            try {
                call.run();
                return;
            } catch (RequestTimeoutException error) {
                System.err.println("not answered yet: " + error.getMessage());
            }
        }
        throw new IllegalStateException("no request was answered within a minute");
    }

    static boolean ask(DefaultMQProducer producer, String topic, long number, long timeout) throws Exception {
        byte[] body = ByteBuffer.allocate(BODY).putLong(number).array();
        Message reply = producer.request(new Message(topic, body), timeout);
        if (ByteBuffer.wrap(reply.getBody()).getLong() != number) throw new IllegalStateException("the reply to another request: " + reply);
        return true;
    }
}
